//! Runs the examples of `docs/transactions.md` and the Python example of `docs/sql.md`.
//!
//! The Rust examples are between the marks below, and a test compares them with the guide. The Python and JavaScript
//! examples are read from the guide.

use std::error::Error;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use windlass::{NewEvent, Queue};
use windlass_testkit::Kind;

use crate::bed::{Bed, run};
use crate::open_transaction::query_number;
use crate::support::*;

const GUIDE: &str = include_str!("../../../../docs/transactions.md");

/// The blocks of code in one language, in order.
fn blocks(guide: &str, language: &str) -> Vec<String> {
    let begin = format!("```{language}\n");
    guide.split(&begin).skip(1).map(|rest| rest.split_once("```").unwrap().0.to_owned()).collect()
}

/// Creates the table of the examples.
async fn create_orders_table(bed: &Bed) -> Queue {
    let id = if bed.database.kind == Kind::Sqlite { "INTEGER PRIMARY KEY" } else { "bigserial PRIMARY KEY" };
    bed.database.execute(&format!("CREATE TABLE orders (id {id}, customer text NOT NULL)")).await;
    bed.real_time_queue().await
}

/// Checks that there is one order and its event.
async fn assert_placed(bed: &Bed, queue: &Queue, payload: Value) {
    assert_eq!(query_number(&bed.database, "SELECT count(*) FROM orders WHERE customer = 'customer-7'").await, 1);
    let delivery = claim_one(queue).await;
    let event = &delivery.event;
    assert_eq!((&*event.event_type, event.group_id.as_deref()), ("order.placed", Some("customer-7")));
    assert_eq!(event.payload::<Value>().unwrap(), payload);
    done(queue, &delivery).await;
    assert!(poll(queue).await.is_none());
}

fn order() -> Value {
    json!({ "order": 17 })
}

type Done = Result<(), Box<dyn Error>>;

async fn with_sqlx(queue: &Queue, pool: sqlx::PgPool, order: Value) -> Done {
    // guide
    let mut tx = pool.begin().await?;
    sqlx::query("INSERT INTO orders (customer) VALUES ($1)").bind("customer-7").execute(&mut *tx).await?;
    queue.publish_in(&mut *tx, NewEvent::new("order.placed").payload(&order)?.group("customer-7")).await?;
    tx.commit().await?;
    // end
    Ok(())
}

fn with_rusqlite(queue: &Queue, mut connection: rusqlite::Connection, order: Value) -> Done {
    // guide
    let tx = connection.transaction()?;
    tx.execute("INSERT INTO orders (customer) VALUES (?1)", ["customer-7"])?;
    queue.publish_in(&tx, NewEvent::new("order.placed").payload(&order)?.group("customer-7"))?;
    tx.commit()?;
    // end
    Ok(())
}

async fn with_tokio_postgres(mut client: tokio_postgres::Client, order: Value) -> Done {
    // guide
    let tx = client.transaction().await?;
    tx.execute("INSERT INTO orders (customer) VALUES ($1)", &[&"customer-7"]).await?;
    tx.execute(
        "INSERT INTO windlass.outbox (event_type, payload, group_id) VALUES ($1, $2::text::json, $3)",
        &[&"order.placed", &order.to_string(), &"customer-7"],
    )
    .await?;
    tx.commit().await?;
    // end
    Ok(())
}

fn with_diesel(mut connection: diesel::PgConnection, order: Value) -> Done {
    // guide
    use diesel::prelude::*;
    use diesel::sql_types::Text;

    connection.transaction(|connection| {
        diesel::sql_query("INSERT INTO orders (customer) VALUES ($1)")
            .bind::<Text, _>("customer-7")
            .execute(connection)?;
        diesel::sql_query("INSERT INTO windlass.outbox (event_type, payload, group_id) VALUES ($1, $2::json, $3)")
            .bind::<Text, _>("order.placed")
            .bind::<Text, _>(order.to_string())
            .bind::<Text, _>("customer-7")
            .execute(connection)
    })?;
    // end
    Ok(())
}

#[test]
fn rust_in_the_guide_matches_this_file() {
    let source = include_str!("transactions_guide.rs");
    let marked = source.split("    // guide\n").skip(1).map(|rest| rest.split_once("    // end\n").unwrap().0);
    let run: Vec<String> = marked.map(|code| code.replace("\n    ", "\n").trim_start().to_owned()).collect();
    assert_eq!(blocks(GUIDE, "rust,ignore"), run);
}

on_postgres! {
    async fn sqlx_publishes_in_its_transaction(bed) {
        let queue = create_orders_table(bed).await;
        with_sqlx(&queue, sqlx::PgPool::connect(&bed.database.url).await.unwrap(), order()).await.unwrap();
        assert_placed(bed, &queue, order()).await;
    }

    async fn tokio_postgres_publishes_in_its_transaction(bed) {
        let queue = create_orders_table(bed).await;
        let (client, connection) = tokio_postgres::connect(&bed.database.url, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        with_tokio_postgres(client, order()).await.unwrap();
        assert_placed(bed, &queue, order()).await;
    }

    async fn diesel_publishes_in_its_transaction(bed) {
        let queue = create_orders_table(bed).await;
        let url = bed.database.url.clone();
        let publish = move || with_diesel(diesel::Connection::establish(&url).unwrap(), order()).map_err(|error| error.to_string());
        tokio::task::spawn_blocking(publish).await.unwrap().unwrap();
        assert_placed(bed, &queue, order()).await;
    }

    async fn psycopg_publishes_in_its_transaction(bed) {
        let queue = create_orders_table(bed).await;
        run_python(bed, &with_test_database(bed, &blocks(GUIDE, "python")[0]));
        assert_placed(bed, &queue, order()).await;
    }

    async fn psycopg_calls_the_function(bed) {
        let queue = create_orders_table(bed).await;
        let sql = include_str!("../../../../docs/sql.md");
        run_python(bed, &with_test_database(bed, &blocks(sql, "python")[0]));
        assert_placed(bed, &queue, json!({ "customer": 7 })).await;
    }

    async fn node_publishes_in_its_transaction(bed) {
        let queue = create_orders_table(bed).await;
        let script = with_test_database(bed, &blocks(GUIDE, "javascript")[0]);
        let mut node = Command::new("node");
        // Node resolves modules from the current folder.
        node.args(["--input-type=module", "--eval", &script]).current_dir(installed("WINDLASS_TEST_NODE_FOLDER"));
        run_successfully(node);
        assert_placed(bed, &queue, order()).await;
    }
}

#[test]
fn rusqlite_publishes_in_its_transaction() {
    run(Kind::Sqlite, async |bed: &Bed| {
        let queue = create_orders_table(bed).await;
        with_rusqlite(&queue, rusqlite::Connection::open(bed.database.file()).unwrap(), order()).unwrap();
        assert_placed(bed, &queue, order()).await;
    });
}

#[test]
fn sqlite3_of_python_publishes_in_its_transaction() {
    run(Kind::Sqlite, async |bed: &Bed| {
        let queue = create_orders_table(bed).await;
        // The script opens a file of this name in the current folder.
        run_python(bed, &blocks(GUIDE, "python")[1]);
        assert_placed(bed, &queue, order()).await;
    });
}

/// Replaces the database of the guide.
fn with_test_database(bed: &Bed, script: &str) -> String {
    let named = "postgresql://localhost/shop";
    assert!(script.contains(named), "{script}");
    script.replace(named, &bed.database.url)
}

/// A path that `cargo xtask` installs and passes in a variable.
fn installed(variable: &str) -> PathBuf {
    match std::env::var_os(variable) {
        Some(path) if !path.is_empty() => path.into(),
        _ => panic!("{variable} is not set: run the tests with `cargo xtask test`"),
    }
}

fn run_python(bed: &Bed, script: &str) {
    let mut python = Command::new(installed("WINDLASS_TEST_PYTHON"));
    python.args(["-c", script]).current_dir(bed.database.folder.path());
    run_successfully(python);
}

fn run_successfully(mut command: Command) {
    let output = command.stdin(Stdio::null()).output().expect("the program can be run");
    let printed = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&printed));
}
