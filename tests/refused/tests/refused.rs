//! Pools that Perennial cannot use do not compile, and the compiler says why.

#![allow(unexpected_cfgs, reason = "the cases are compiled by their test alone")]

/// The cases.
#[cfg(refused)]
mod cases {
    use perennial::Perennial;
    use perennial_jobs::Claims;

    async fn pool_of_another_sqlx(pool: sqlx_postgres_0_8::PgPool) {
        let _ = Perennial::with_pool(pool).await;
    }

    async fn number() {
        let _ = Perennial::builder().with_pool(42_i32).await;
    }

    async fn reference(pool: &sqlx::SqlitePool) {
        let _ = Claims::with_pool(pool, "mail");
    }
}

/// Compiles this file with the cases, with the features and dependencies of the present build.
#[test]
fn pool_that_cannot_be_used_is_refused_with_a_reason() {
    let mut compile = std::process::Command::new(env!("CARGO"));
    compile.args(["rustc", "--profile", "test", "--test", "refused"]);
    compile.args([
        "--manifest-path",
        concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"),
    ]);
    let done = compile
        .args(["--", "--cfg", "refused"])
        .output()
        .expect("cargo runs");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success(), "it compiles");
    // The compiler repeats some messages.
    let errors: Vec<_> = said
        .lines()
        .filter(|line| line.starts_with("error["))
        .collect();
    let refused = [
        "Postgres>` is no database that Perennial can use",
        "`i32` is no database that Perennial can use",
        "Sqlite>` is no database that Perennial can use",
    ];
    for case in refused {
        assert!(
            errors.iter().any(|error| error.contains(case)),
            "{case}: {said}"
        );
    }
    for error in &errors {
        assert!(refused.iter().any(|case| error.contains(case)), "{said}");
    }
    for reason in [
        "no pool of sqlx 0.9 whose database this build knows",
        "for a pool of another version of sqlx, or of Diesel, let Perennial open",
    ] {
        assert_eq!(
            said.matches(reason).count(),
            errors.len(),
            "{reason}: {said}"
        );
    }
}
