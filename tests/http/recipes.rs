//! What the chapter of recipes shows below its programs: each command is carried out on the recipe's
//! routes, and prints what the chapter says.

use std::{sync::Arc, time::Duration};

use axum::{
    Json, Router,
    extract::{Path, Request},
    http::{HeaderMap, HeaderValue, header::ACCEPT_LANGUAGE},
    middleware::map_request,
    routing::{get, post},
};
use perennial::{
    DAY, Generation, Key, Refresh,
    driver::Engine,
    layer::CdnTags,
    sql::{ColumnType, Trigger},
};
use perennial_idempotency::{IdempotencyLayer, Scope};
use perennial_jobs::{ExclusiveLayer, LockName};
use perennial_testkit::{Folder, Reply, request, serve};
use tokio::{sync::Semaphore, task::JoinSet};

const RECIPES: &str = include_str!("../../docs/recipes.md");

/// The lines that the chapter shows below the `number`th command with this text.
fn shown_below(command: &str, number: usize) -> Vec<&'static str> {
    let (_, after) = RECIPES
        .match_indices(command)
        .nth(number)
        .map(|(at, _)| RECIPES.split_at(at))
        .unwrap_or_else(|| panic!("docs/recipes.md has no {command:?}"));
    let output = after.lines().skip(1);
    output
        .take_while(|line| !line.starts_with("```") && !line.starts_with('$'))
        .collect()
}

/// The header lines of a response that contain one of these words, as `curl` and `grep` print them.
fn lines_with(reply: &Reply, words: &[&str]) -> Vec<String> {
    let lines = reply.headers.iter().map(|(name, value)| {
        let value = value.to_str().expect("text");
        format!("{name}: {value}")
    });
    let mut lines: Vec<_> = lines
        .filter(|line| words.iter().any(|word| line.starts_with(word)))
        .collect();
    lines.sort();
    lines
}

fn sorted(lines: Vec<&str>) -> Vec<String> {
    let mut lines: Vec<_> = lines.into_iter().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[tokio::test]
async fn api_with_languages_answers_as_its_recipe_shows() {
    async fn reduce_language(mut request: Request) -> Request {
        let language = HeaderValue::from_static("de");
        request.headers_mut().insert(ACCEPT_LANGUAGE, language);
        request
    }
    async fn products(headers: HeaderMap) -> Json<Vec<String>> {
        let language = headers[ACCEPT_LANGUAGE].to_str().unwrap_or("en");
        Json(vec![format!("a product in {language}")])
    }
    let folder = Folder::new();
    let key = Key::new()
        .query(["page", "category"])
        .header(ACCEPT_LANGUAGE);
    let policy = Refresh::every(DAY).cdn_cache(Duration::from_secs(60));
    let layer = folder.site().await.layer(policy).key(key).tag("products");
    let app = Router::new()
        .route("/api/products", get(products).layer(layer))
        .layer(map_request(reduce_language));
    let address = serve(app).await;
    let language = [("accept-language", "de-AT")];
    let reply = request(address, "GET", "/api/products?page=1", &language).await;
    let words = ["vary: accept-language", "cache-status", "cdn"];
    let shown = sorted(shown_below(
        "'http://127.0.0.1:3000/api/products?page=1'",
        0,
    ));
    assert_eq!(lines_with(&reply, &words), shown);
}

#[tokio::test]
async fn page_follows_its_table_as_its_recipe_shows() {
    async fn product(Path(id): Path<i64>, generation: Generation) -> &'static str {
        generation.tag(format!("product-{id}"));
        "…"
    }
    let folder = Folder::new();
    let site = folder.site().await;
    let pool = sqlx::SqlitePool::connect(&folder.url()).await;
    let pool = pool.expect("connects");
    let trigger = Trigger::on("product")
        .column("id", ColumnType::Integer)
        .tag("product-{id}")
        .list_tag("products")
        .columns(["title", "price"]);
    let table = "CREATE TABLE product (id INTEGER PRIMARY KEY, title TEXT, price INTEGER);
        INSERT INTO product VALUES (7, 'Emma', 4)";
    sqlx::raw_sql(table).execute(&pool).await.expect("is made");
    for statement in trigger.create(Engine::Sqlite).expect("is correct") {
        let statement = sqlx::AssertSqlSafe(statement);
        sqlx::raw_sql(statement)
            .execute(&pool)
            .await
            .expect("is made");
    }
    let layer = site.layer(Refresh::every(30 * DAY));
    let app = Router::new().route("/products/{id}", get(product).layer(layer));
    let address = serve(app).await;
    request(address, "GET", "/products/7", &[]).await;
    let change = "UPDATE product SET price = 5 WHERE id = 7";
    assert!(RECIPES.contains(change));
    sqlx::raw_sql(change).execute(&pool).await.expect("is done");
    tokio::time::sleep(Duration::from_secs(2)).await;
    let reply = request(address, "GET", "/products/7", &[]).await;
    let shown = shown_below("curl -si http://127.0.0.1:3000/products/7", 0);
    assert_eq!(lines_with(&reply, &["cache-status"]), shown);
}

#[tokio::test]
async fn cdn_gets_the_headers_that_its_recipe_shows() {
    let folder = Folder::new();
    let policy = Refresh::every(DAY).cdn_cache(Duration::from_secs(600));
    let layer = folder.site().await.layer(policy);
    let layer = layer.tag("catalogue").cdn_tags(CdnTags::SurrogateKey);
    let app = Router::new().route("/books", get(async || "").layer(layer));
    let reply = request(serve(app).await, "GET", "/books", &[]).await;
    let shown = shown_below("curl -si http://127.0.0.1:3000/books", 0);
    assert_eq!(lines_with(&reply, &["surrogate", "cdn"]), sorted(shown));
}

#[tokio::test]
async fn second_import_is_refused_as_its_recipe_shows() {
    let folder = Folder::new();
    let site = folder.site().await;
    let alone = ExclusiveLayer::new(&site.locks(), |_| LockName::from("import"))
        .wait(Duration::ZERO)
        .action("imports the catalogue");
    // The first import ends when the second one has been refused.
    let refused = Arc::new(Semaphore::new(0));
    let end = Arc::clone(&refused);
    let import = async move || {
        let _end = end.acquire().await.expect("is not closed");
        "imported"
    };
    let app = Router::new().route("/import", post(import).layer(alone));
    let address = serve(app).await;
    let mut imports = JoinSet::new();
    for _ in 0..2 {
        imports.spawn(request(address, "POST", "/import", &[]));
    }
    let problem = imports.join_next().await.expect("there are two");
    refused.add_permits(1);
    let imported = imports.join_next().await.expect("there are two");
    let (problem, imported) = (problem.expect("answers"), imported.expect("answers"));
    let shown = shown_below("curl -s -X POST http://127.0.0.1:3000/import &", 0);
    assert_eq!(imported.text(), shown[1]);
    // The order of the fields depends on a feature of serde_json. The chapter replaces the end of a
    // long text by `…`.
    let problem: serde_json::Value = serde_json::from_str(problem.text()).expect("JSON");
    for field in ["action", "detail", "status"] {
        let name = format!("\"{field}\":");
        let (_, value) = shown[0].split_once(&name).expect("shows the field");
        let end = value.find(['…', '}']).expect("ends");
        let value = value[..end].split(",\"").next().unwrap_or_default();
        let value = value.trim_end_matches(',');
        let answered = problem[field].to_string();
        assert!(
            answered.starts_with(value) && !value.is_empty(),
            "{field} is {answered}, and the chapter shows {value}"
        );
    }
}

#[tokio::test]
async fn repeat_of_a_payment_is_answered_as_its_recipe_shows() {
    let folder = Folder::new();
    let site = folder.site().await;
    let once = IdempotencyLayer::new(&site.locks(), |_| Some(Scope::of("a customer")));
    let app = Router::new().route("/pay", post(async || "paid").layer(once));
    let address = serve(app).await;
    for number in 0..2 {
        let key = [("idempotency-key", "\"7f3a\"")];
        let reply = request(address, "POST", "/pay", &key).await;
        let mut printed = vec![format!("HTTP/1.1 {} OK", reply.status)];
        printed.extend(lines_with(&reply, &["idem"]));
        let command = "curl -si -X POST -H 'Idempotency-Key: \"7f3a\"'";
        assert_eq!(printed, shown_below(command, number));
    }
}
