//! `perennial explain`: asks a running site why a page is cached or not.

use std::time::Duration;

use clap::Args;
use perennial::entries::Explanation;
use perennial_admin::{reason, remedy};
use serde_json::Value;
use ureq::{
    Agent,
    http::{Uri, header, uri::Scheme},
};

use crate::{Failure, Result, print};

/// The largest explanation, in bytes.
const MAX_ANSWER_BYTES: u64 = 1 << 20;

#[derive(Args)]
pub(crate) struct ExplainOptions {
    /// The page: https://example.com/books?page=1.
    url: Uri,
    /// The token that the site was built with, by `Builder::explain_token`.
    #[arg(long, env = "PERENNIAL_EXPLAIN_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Ask the process at this address directly, past the proxies in front of it: 127.0.0.1:3000.
    #[arg(long, value_name = "ADDRESS")]
    via: Option<String>,
    /// Find out whether the page depends on one of the request's headers. To do so, the page's handler runs
    /// several times. None of these results is stored.
    #[arg(long)]
    compare: bool,
    /// Send this header, such as 'Accept-Language: de'.
    #[arg(long = "header", short = 'H', value_parser = named)]
    headers: Vec<(String, String)>,
}

fn named(header: &str) -> Result<(String, String), String> {
    let (name, value) = header.split_once(':').ok_or("write NAME: VALUE")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

impl ExplainOptions {
    pub(crate) async fn explain(self, limit: Duration, as_json: bool) -> Result {
        let asked = tokio::task::spawn_blocking(move || self.ask(limit));
        let explanation = asked
            .await
            .map_err(|error| Failure::Failed(error.to_string()))??;
        if as_json {
            print::json(explanation);
            return Ok(());
        }
        let explanation: Explanation = serde_json::from_value(explanation).map_err(|error| {
            Failure::Failed(format!(
                "this release does not know the site's explanation, which is of another release ({error}): --json shows it as it is"
            ))
        })?;
        let mut lines = vec![
            ("answer", explanation.served.to_string()),
            ("reason", reason(&explanation)),
            ("to change it", remedy(&explanation).to_owned()),
            ("layer", explanation.layer.clone()),
        ];
        lines.extend(explanation.key.map(|key| ("key", key)));
        if let Some(version) = explanation.version {
            let seconds = |time: Duration| time.as_secs_f64().to_string();
            lines.push(("age in seconds", seconds(version.age)));
            lines.push(("interval in seconds", seconds(version.interval)));
            lines.push(("tags", version.tags.join(", ")));
            lines.push(("parts", version.parts.join(", ")));
        }
        for (name, text) in lines {
            if !text.is_empty() {
                print::line(&format!("{name:<20} {}", print::text(&text)));
            }
        }
        Ok(())
    }

    /// Sends the request. The token is not sent to the target of a redirect, nor through a proxy that the
    /// environment names. Without TLS, it is sent only to this machine or to the address of `--via`.
    fn ask(&self, limit: Duration) -> Result<Value> {
        let host = self.url.authority().ok_or_else(|| {
            let url = &self.url;
            Failure::Usage(format!("{url} is no URL: write https://example.com{url}"))
        })?;
        let token = self.token.as_deref().ok_or_else(|| {
            Failure::Usage(
                "the site answers only whoever knows its token: set PERENNIAL_EXPLAIN_TOKEN to the text that the site passes to \
                 `Builder::explain_token`"
                    .to_owned(),
            )
        })?;
        let is_local = matches!(host.host(), "localhost" | "127.0.0.1" | "[::1]");
        let url = match &self.via {
            Some(address) => {
                let page = self.url.path_and_query().map_or("/", |page| page.as_str());
                format!("http://{address}{page}")
            }
            None if self.url.scheme() == Some(&Scheme::HTTPS) || is_local => self.url.to_string(),
            None => {
                return Err(Failure::Usage(
                    "the token would be sent in clear: write an https URL, or the address of the process by --via"
                        .to_owned(),
                ));
            }
        };
        let agent: Agent = Agent::config_builder()
            .timeout_global(Some(limit))
            .max_redirects(0)
            .proxy(None)
            .http_status_as_error(false)
            .build()
            .into();
        let mut request = agent
            .get(&url)
            .header(header::HOST, host.as_str())
            .header("Perennial-Explain", token);
        if self.compare {
            request = request.header("Perennial-Explain-Compare", "yes");
        }
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let failed =
            |error: ureq::Error| Failure::Failed(format!("{url} does not answer: {error}"));
        let mut response = request.call().map_err(failed)?;
        let (status, headers) = (response.status(), response.headers().clone());
        let body = response.body_mut().with_config().limit(MAX_ANSWER_BYTES);
        let text = body.read_to_string().unwrap_or_default();
        match serde_json::from_str(&text) {
            Ok(Value::Object(fields)) if fields.contains_key("served") => Ok(Value::Object(fields)),
            Ok(Value::String(error)) if status.is_server_error() => Err(Failure::Failed(format!(
                "the page is not in the memory of the process, and {error}"
            ))),
            _ => {
                let said = headers.get("cache-status").and_then(|it| it.to_str().ok());
                let said = said.unwrap_or("no Cache-Status");
                Err(Failure::Failed(format!(
                    "the answer is {status} with {said}, and no explanation: the route has no layer of the site, the token is not \
                     the site's, or something in front answered: an outer middleware, or a proxy, which --via passes by"
                )))
            }
        }
    }
}
