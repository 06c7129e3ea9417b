//! The migrated schema is a snapshot in the repository, and migrating is safe for everyone at once.

use std::path::Path;

use windlass::{Error, Queue, SchemaVersion, schema_version};

use crate::bed::{Database, Kind, run_on_empty};
use crate::postgres as server;

/// Compares with the snapshot; rewrites it where `WINDLASS_UPDATE_SNAPSHOTS` is set.
fn assert_snapshot(name: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it").join(name);
    if std::env::var_os("WINDLASS_UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, found).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        expected == found,
        "the schema is not that of {}; if it should change, set WINDLASS_UPDATE_SNAPSHOTS=1 and look at the diff.\n\
         Found:\n{found}",
        path.display()
    );
}

#[test]
fn the_sqlite_schema_is_the_snapshot() {
    run_on_empty(Kind::Sqlite, async |database: &Database| {
        database.open().await.close().await;
        let connection = rusqlite::Connection::open(database.file()).unwrap();
        let all = "SELECT sql || ';' FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'
                   ORDER BY CASE type WHEN 'table' THEN 1 WHEN 'index' THEN 2 ELSE 3 END, name";
        let mut select = connection.prepare(all).unwrap();
        let found: Vec<String> = select.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
        assert_snapshot("schema.sqlite.sql", &(found.join("\n\n") + "\n"));
    });
}

// Partitions of months are left out: their names depend on the day.
const RELATIONS: &str = "
SELECT format('%s %s%s%s', CASE c.relkind WHEN 'r' THEN 'table' WHEN 'p' THEN 'partitioned table' WHEN 'v' THEN 'view'
                           WHEN 'S' THEN 'sequence' WHEN 'i' THEN 'index' WHEN 'I' THEN 'partitioned index' END,
              c.relname, ' (' || array_to_string(c.reloptions, ', ') || ')',
              ' partition by ' || pg_get_partkeydef(c.oid))
FROM pg_class c WHERE c.relnamespace = 'windlass'::regnamespace AND c.relname !~ '_\\d{4}_\\d{2}' ORDER BY 1";
const COLUMNS: &str = "
SELECT format('%s.%s %s%s%s', c.relname, a.attname, format_type(a.atttypid, a.atttypmod),
              CASE WHEN a.attnotnull THEN ' not null' END, ' default ' || pg_get_expr(d.adbin, d.adrelid))
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
     LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
WHERE c.relnamespace = 'windlass'::regnamespace AND c.relkind IN ('r', 'p', 'v') AND NOT c.relispartition
ORDER BY c.relname, a.attnum";
const INDEXES: &str = "
SELECT indexdef FROM pg_indexes WHERE schemaname = 'windlass' AND indexname !~ '_\\d{4}_\\d{2}' ORDER BY indexname";
const FUNCTIONS: &str = "
SELECT format('function %s(%s) returns %s', p.proname, pg_get_function_arguments(p.oid), pg_get_function_result(p.oid))
FROM pg_proc p WHERE p.pronamespace = 'windlass'::regnamespace ORDER BY 1";
const VIEWS: &str = "
SELECT format(E'view %s as\n%s', viewname, definition) FROM pg_views WHERE schemaname = 'windlass' ORDER BY viewname";

#[test]
fn the_postgres_schema_is_the_snapshot() {
    run_on_empty(Kind::Postgres, async |database: &Database| {
        database.open().await.close().await;
        let mut found = String::new();
        for sql in [RELATIONS, COLUMNS, INDEXES, FUNCTIONS, VIEWS] {
            // Names are shown with their schema, whatever the role is called.
            found += &server::lines(&database.url, &format!("SET search_path = ''; {sql}")).await.join("\n");
            found += "\n\n";
        }
        let lines: Vec<&str> = found.lines().map(str::trim_end).collect();
        assert_snapshot("schema.postgres.txt", &(lines.join("\n").trim_end().to_owned() + "\n"));
    });
}

/// What the library expects to find, and says how to make again.
async fn the_listed_indexes_are_those_of_a_new_database(database: &Database) {
    database.open().await.close().await;
    let (name, found) = match database.kind {
        Kind::Sqlite => {
            let all = "SELECT sql FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL ORDER BY name";
            let connection = rusqlite::Connection::open(database.file()).unwrap();
            let mut select = connection.prepare(all).unwrap();
            let found: Vec<String> = select.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
            ("../../src/store/sqlite/indexes.sql", found)
        }
        Kind::Postgres => {
            let all = "SET search_path = '';
                SELECT pg_get_indexdef(i.indexrelid) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
                WHERE c.relnamespace = 'windlass'::regnamespace AND NOT c.relispartition
                ORDER BY c.relname COLLATE pg_catalog.\"C\"";
            ("../../src/store/postgres/indexes.sql", server::lines(&database.url, all).await)
        }
    };
    let line = |statement: &String| statement.split_whitespace().collect::<Vec<_>>().join(" ") + ";\n";
    assert_snapshot(name, &found.iter().map(line).collect::<String>());
}

async fn many_open_an_empty_database_at_once(database: &Database) {
    let opening: Vec<_> = (0..8)
        .map(|_| {
            let url = database.url.clone();
            tokio::spawn(async move { Queue::open(&url).await })
        })
        .collect();
    for opened in opening {
        let queue = opened.await.unwrap().unwrap_or_else(|error| panic!("{error}"));
        crate::support::publish(&queue, "t").await;
    }
    let queue = database.open().await;
    assert_eq!(crate::support::take_all(&queue).await.len(), 8);
    assert_eq!(queue.namespaces().await.unwrap().len(), 1);
}

async fn an_empty_database_is_not_touched_unless_asked(database: &Database) {
    let version = schema_version(&database.url).await.unwrap();
    assert_eq!(version.found, 0);
    let error = Queue::options(&database.url).migrate(false).open().await.map(drop).unwrap_err();
    assert_eq!(error, Error::SchemaTooOld { found: 0, known: version.known });
    assert_eq!(schema_version(&database.url).await, Ok(version));
    database.open().await;
    assert_eq!(schema_version(&database.url).await, Ok(SchemaVersion { found: version.known, ..version }));
    Queue::options(&database.url).migrate(false).open().await.map(drop).unwrap();
}

async fn a_newer_schema_is_refused(database: &Database) {
    database.open().await.close().await;
    let known = schema_version(&database.url).await.unwrap().known;
    let table = match database.kind {
        Kind::Sqlite => "windlass_migrations",
        Kind::Postgres => "windlass.migrations",
    };
    let now = if database.kind == Kind::Sqlite { "0" } else { "now()" };
    database.execute(&format!("INSERT INTO {table} (version, name, applied_at) VALUES (999, 'later', {now})")).await;
    for migrate in [true, false] {
        let error = Queue::options(&database.url).migrate(migrate).open().await.map(drop).unwrap_err();
        assert_eq!(error, Error::SchemaTooNew { found: 999, known });
    }
    assert_eq!(schema_version(&database.url).await, Ok(SchemaVersion { found: 999, known }));
}

macro_rules! on_an_empty_database {
    ($($name:ident)*) => {
        mod sqlite {
            $(#[test] fn $name() { crate::bed::run_on_empty(crate::bed::Kind::Sqlite, super::$name) })*
        }

        mod postgres {
            $(#[test] fn $name() { crate::bed::run_on_empty(crate::bed::Kind::Postgres, super::$name) })*
        }
    };
}

on_an_empty_database! {
    the_listed_indexes_are_those_of_a_new_database
    many_open_an_empty_database_at_once
    an_empty_database_is_not_touched_unless_asked
    a_newer_schema_is_refused
}
