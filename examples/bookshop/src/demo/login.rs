//! The login in front of the status pages: `operator`, with the password `demo`.

use axum::{
    extract::Request,
    http::{StatusCode, header, request::Parts},
    middleware::Next,
    response::{IntoResponse, Response},
};
use perennial_admin::Access;

/// The header that a browser sends after the login as `operator:demo`.
const OPERATOR: &str = "Basic b3BlcmF0b3I6ZGVtbw==";

/// Marks a request behind the login.
#[derive(Clone)]
struct Operator;

/// Asks for the password. A real site has its session or its identity proxy here.
pub(super) async fn ask(mut request: Request, next: Next) -> Response {
    let sent = request.headers().get(header::AUTHORIZATION);
    if sent.is_none_or(|sent| sent != OPERATOR) {
        let ask = [(header::WWW_AUTHENTICATE, "Basic realm=\"operator, demo\"")];
        return (
            StatusCode::UNAUTHORIZED,
            ask,
            "operator, with the password demo",
        )
            .into_response();
    }
    request.extensions_mut().insert(Operator);
    next.run(request).await
}

pub(super) fn access(request: &Parts) -> Access {
    match request.extensions.get::<Operator>() {
        Some(Operator) => Access::full("operator"),
        None => Access::Forbidden,
    }
}
