//! The migrated schema equals the snapshot in the repository, and concurrent processes can migrate safely.

use std::path::Path;

use windlass::{Error, Queue, SchemaVersion, schema_version};
use windlass_testkit::postgres as server;
use windlass_testkit::{Database, Kind};

use crate::bed::run_on_empty;

/// Compares with a snapshot, or rewrites it if `WINDLASS_UPDATE_SNAPSHOTS` is set.
fn assert_snapshot(name: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it").join(name);
    if std::env::var_os("WINDLASS_UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, found).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        expected == found,
        "the schema differs from {}; if the change is intended, set WINDLASS_UPDATE_SNAPSHOTS=1 and review the diff.\n\
         Found:\n{found}",
        path.display()
    );
}

#[test]
fn sqlite_schema_matches_snapshot() {
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

// Monthly partitions are left out, because their names depend on the date.
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
fn postgres_schema_matches_snapshot() {
    run_on_empty(Kind::Postgres, async |database: &Database| {
        database.open().await.close().await;
        let mut found = String::new();
        for sql in [RELATIONS, COLUMNS, INDEXES, FUNCTIONS, VIEWS] {
            // With an empty search path, names are shown with their schema under every role.
            found += &server::lines(&database.url, &format!("SET search_path = ''; {sql}")).await.join("\n");
            found += "\n\n";
        }
        let lines: Vec<&str> = found.lines().map(str::trim_end).collect();
        assert_snapshot("schema.postgres.txt", &(lines.join("\n").trim_end().to_owned() + "\n"));
    });
}

/// `indexes.sql` is the list of indexes that the library checks and repairs.
async fn listed_indexes_match_a_new_database(database: &Database) {
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

async fn concurrent_opens_migrate_an_empty_database(database: &Database) {
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
    assert_eq!(crate::support::claim_all(&queue).await.len(), 8);
    assert_eq!(queue.namespaces().await.unwrap().len(), 1);
}

async fn empty_database_is_migrated_only_on_request(database: &Database) {
    let version = schema_version(&database.url).await.unwrap();
    assert_eq!(version.found, 0);
    let error = Queue::options(&database.url).migrate(false).open().await.map(drop).unwrap_err();
    assert_eq!(error, Error::SchemaTooOld { found: 0, known: version.known });
    assert_eq!(schema_version(&database.url).await, Ok(version));
    database.open().await;
    assert_eq!(schema_version(&database.url).await, Ok(SchemaVersion { found: version.known, ..version }));
    Queue::options(&database.url).migrate(false).open().await.map(drop).unwrap();
}

async fn newer_schema_is_refused(database: &Database) {
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
            $(#[test] fn $name() { crate::bed::run_on_empty(windlass_testkit::Kind::Sqlite, super::$name) })*
        }

        mod postgres {
            $(#[test] fn $name() { crate::bed::run_on_empty(windlass_testkit::Kind::Postgres, super::$name) })*
        }
    };
}

on_an_empty_database! {
    listed_indexes_match_a_new_database
    concurrent_opens_migrate_an_empty_database
    empty_database_is_migrated_only_on_request
    newer_schema_is_refused
}
