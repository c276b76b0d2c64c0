//! The page "Explain". It shows how a stored page would be served. To find out, it sends a request for
//! that page through the application's router. If no layer answers the request, the handler of that
//! page runs; therefore only an operator may ask.

use std::{
    future,
    sync::{Arc, OnceLock},
};

use axum::{
    Router,
    extract::{Query, State},
    http::StatusCode,
    middleware::map_response,
    response::{Html, Response},
};
use maud::{Markup, html};
use perennial::{
    Error, Perennial,
    entries::{Explanation, visible},
};
use serde::Deserialize;

use super::{
    Admin,
    access::Viewer,
    html::{Unavailable, page, prose},
    pages::key_cell,
};
use crate::{reason, remedy};

#[derive(Debug, Default, Deserialize)]
pub(crate) struct ExplainForm {
    #[serde(default)]
    path: String,
}

pub(crate) async fn explain(
    viewer: Viewer,
    State(admin): State<Arc<Admin>>,
    Query(ExplainForm { path }): Query<ExplainForm>,
) -> Result<Html<String>, Unavailable> {
    let answer = match &admin.pages {
        None => {
            html! { p { "The application has given this page no router (" code { "Admin::pages" } "). Ask by " code { "perennial explain" } "." } }
        }
        Some(_) if !viewer.can_act => {
            html! { p { "Where no layer answers, the page's own handler would run: only a user with full access may ask. The page of an entry shows its state." } }
        }
        Some(_) if !path.starts_with('/') => {
            html! { p { "Write the path of a page, with its query. The answer is that for a visitor without cookies." } }
        }
        Some(pages) => match explained(&admin.site, pages, &path).await {
            Ok((Some(explanation), _)) => shown(&viewer, &explanation),
            Ok((None, answered)) => not_cached(answered),
            Err(error) if error.kind() == perennial::ErrorKind::Invalid => {
                html! { p { (visible(&error.to_string())) } }
            }
            Err(error) => return Err(error.into()),
        },
    };
    let body = html! {
        form .search.card action={ (viewer.base) "/explain" } {
            label { "Page " input name="path" value=(path) placeholder="/books?page=1"; }
            button { "Explain" }
        }
        (answer)
    };
    Ok(page(&viewer, "Explain", &body))
}

/// Returns the explanation of a layer. If there is none, a handler or a middleware of the application has answered,
/// with the returned status.
async fn explained(
    site: &Perennial,
    pages: &Router,
    path: &str,
) -> Result<(Option<Explanation>, Option<StatusCode>), Error> {
    let status = Arc::new(OnceLock::new());
    let answered = Arc::clone(&status);
    let pages = pages.clone().layer(map_response(move |response: Response| {
        let _ = answered.set(response.status());
        future::ready(response)
    }));
    let explanation = site.explain(pages, path).await?;
    Ok((explanation, status.get().copied()))
}

fn not_cached(answered: Option<StatusCode>) -> Markup {
    html! {
        section .card.answer {
            p .figure { "not cached" }
            p {
                @if let Some(status) = answered { "The application has answered with " strong { (status) } ". " }
                "No layer of the site was asked. One of these is likely the reason:"
            }
            ul {
                @if answered == Some(StatusCode::NOT_FOUND) {
                    li { "There is no such route, or a handler without a layer has found nothing." }
                } @else {
                    li { "The route has no layer, so its handler answers each request." }
                }
                li { "A middleware outside of the layer has answered." }
                li { "Visitors get other routes than the status page was given by " code { "Admin::pages" } "." }
            }
        }
    }
}

/// The answer first, then its reason and what to change, and only then what else is known.
fn shown(viewer: &Viewer, explanation: &Explanation) -> Markup {
    let remedy = remedy(explanation);
    html! {
        section .card.answer {
            p .figure { (explanation.served) }
            p { (prose(&reason(explanation))) }
            @if !remedy.is_empty() {
                h2 { "To change this" }
                p { (prose(remedy)) }
            }
        }
        section .card {
            h2 { "What is known" }
            table {
                tr { th scope="row" { "Layer" } td { (visible(&explanation.layer)) } }
                @if let Some(key) = &explanation.key { tr { th scope="row" { "Key" } (key_cell(viewer, key)) } }
                @if let Some(version) = &explanation.version {
                    @for (name, texts) in [("Tags", &version.tags), ("Parts", &version.parts), ("Holes", &version.holes)] {
                        @if !texts.is_empty() { tr { th scope="row" { (name) } td { (visible(&texts.join(", "))) } } }
                    }
                }
            }
        }
    }
}
