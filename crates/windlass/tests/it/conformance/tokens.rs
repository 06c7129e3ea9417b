//! API tokens: created, listed and revoked; only a hash of the secret is stored.

use std::time::Duration;

use rusqlite::types::ValueRef;
use sha2::{Digest, Sha256};
use windlass::{CreatedToken, Error, Limits, NewToken, Queue, Scope, Token};
use windlass_testkit::Kind;
use windlass_testkit::postgres as server;

use crate::bed::Bed;
use crate::support::*;

const DAY: Duration = Duration::from_secs(24 * 3600);

async fn create(queue: &Queue, new: NewToken) -> CreatedToken {
    queue.create_token(new).await.expect("the token can be created")
}

/// The error message of a call that must fail and create no token.
async fn refused(queue: &Queue, new: NewToken) -> String {
    let before = queue.tokens().await.unwrap();
    let error = queue.create_token(new).await.expect_err("the token must be refused");
    assert_eq!(queue.tokens().await.unwrap(), before);
    error.to_string()
}

fn ids(tokens: &[Token]) -> Vec<&str> {
    tokens.iter().map(|token| token.token_id.as_str()).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The rows with all their columns; bytes in hexadecimal.
async fn dump(bed: &Bed) -> String {
    match bed.database.kind {
        Kind::Sqlite => dump_sqlite(bed),
        Kind::Postgres => {
            server::lines(&bed.database.url, "SELECT t::text FROM windlass.api_tokens t").await.join("\n")
        }
    }
}

fn dump_sqlite(bed: &Bed) -> String {
    let connection = rusqlite::Connection::open(bed.database.file()).unwrap();
    let mut select = connection.prepare("SELECT * FROM api_tokens").unwrap();
    let columns = select.column_count();
    let text = |value: ValueRef| match value {
        ValueRef::Blob(bytes) => hex(bytes),
        ValueRef::Text(text) => String::from_utf8(text.to_vec()).unwrap(),
        other => format!("{other:?}"),
    };
    let row =
        |row: &rusqlite::Row| Ok((0..columns).map(|at| text(row.get_ref(at).unwrap())).collect::<Vec<_>>().join("|"));
    let rows = select.query_map([], row).unwrap();
    rows.map(Result::unwrap).collect::<Vec<_>>().join("\n")
}

conformance! {
    async fn token_is_created_and_listed_in_all_processes(bed) {
        bed.advance(secs(5));
        let new = NewToken::new([Scope::Consume, Scope::Publish]).name("web shop").namespaces(["orders", "billing"]);
        let CreatedToken { token, secret } = create(&bed.queue, new.expires_in(DAY)).await;
        assert_eq!((token.name.as_str(), &token.scopes[..]), ("web shop", &[Scope::Publish, Scope::Consume][..]));
        assert_eq!(token.namespaces, ["billing", "orders"]);
        assert_eq!((token.created_at, token.expires_at), (bed.now(), Some(after(bed.now(), DAY))));
        assert_eq!(Token::id_of(&secret), Some(token.token_id.as_str()));
        assert_eq!(secret.len(), "wl_".len() + 12 + "_".len() + 64);
        assert!(token.matches(&secret));
        let listed = bed.second_queue().await.tokens().await.unwrap();
        assert_eq!(listed, [token]);
        assert!(listed[0].matches(&secret), "the stored hash differs");
    }

    async fn token_by_default_covers_everything_and_never_expires(bed) {
        let token = create(&bed.queue, NewToken::new([Scope::Read, Scope::Publish, Scope::Read])).await.token;
        assert_eq!((token.name.as_str(), token.expires_at), ("publish,read", None));
        assert_eq!(bed.queue.tokens().await.unwrap(), std::slice::from_ref(&token));
        assert!(token.covers("default") && token.covers("not made yet"));
        assert!(!token.is_expired(after(bed.now(), 36_000 * DAY)));
    }

    async fn tokens_belong_to_the_whole_database(bed) {
        let nowhere = bed.queue.in_namespace("nowhere").unwrap();
        let token = create(&nowhere, NewToken::new([Scope::Admin])).await.token;
        assert_eq!(bed.queue.tokens().await.unwrap(), std::slice::from_ref(&token));
        nowhere.revoke_token(&token.token_id).await.unwrap();
        assert!(bed.queue.tokens().await.unwrap().is_empty());
    }

    async fn tokens_are_listed_oldest_first(bed) {
        let mut created = Vec::new();
        for _ in 0..5 {
            created.push(create(&bed.queue, NewToken::new([Scope::Read])).await.token);
            bed.advance(MICRO);
        }
        assert_eq!(bed.queue.tokens().await.unwrap(), created);
    }

    async fn real_time_tokens_use_the_database_clock(bed) {
        let queue = bed.real_time_queue().await;
        let token = create(&queue, NewToken::new([Scope::Read]).expires_in(DAY)).await.token;
        assert_eq!(token.expires_at, Some(after(token.created_at, DAY)));
        assert!((queue.clock().now() - token.created_at).abs() < chrono::TimeDelta::minutes(1));
        assert_eq!(queue.tokens().await.unwrap(), [token]);
    }

    async fn revoked_token_is_gone_and_the_others_stay(bed) {
        let revoked = create(&bed.queue, NewToken::new([Scope::Read])).await.token;
        bed.advance(secs(1));
        let kept = create(&bed.queue, NewToken::new([Scope::Read])).await.token;
        bed.second_queue().await.revoke_token(&revoked.token_id).await.unwrap();
        assert_eq!(bed.queue.tokens().await.unwrap(), [kept]);
        let again = bed.queue.revoke_token(&revoked.token_id).await.unwrap_err();
        assert_eq!(again, Error::TokenNotFound { token_id: revoked.token_id.clone() });
        assert_eq!(again.code(), "token_not_found");
        assert_eq!(again.to_string(), format!("token '{}' does not exist", revoked.token_id));
    }

    async fn unknown_token_id_revokes_nothing(bed) {
        let CreatedToken { token, secret } = create(&bed.queue, NewToken::new([Scope::Read])).await;
        for unknown in ["", "0", "000000000000", "%", "a\0b", &token.token_id.to_uppercase(), &token.name, &secret] {
            // An id of digits only is equal to its upper-case form.
            if unknown != token.token_id {
                let error = bed.queue.revoke_token(unknown).await.unwrap_err();
                assert_eq!(error, Error::TokenNotFound { token_id: unknown.to_owned() });
            }
        }
        assert_eq!(ids(&bed.queue.tokens().await.unwrap()), [token.token_id]);
    }

    async fn every_scope_is_stored_and_allows_what_it_includes(bed) {
        for scope in Scope::ALL {
            create(&bed.queue, NewToken::new([scope])).await;
            bed.advance(secs(1));
        }
        let tokens = bed.queue.tokens().await.unwrap();
        let allowed = |token: &Token| Scope::ALL.into_iter().filter(|scope| token.allows(*scope)).collect::<Vec<_>>();
        let (publish, consume, read) = (Scope::Publish, Scope::Consume, Scope::Read);
        let expected = [vec![publish], vec![consume, read], vec![read], Scope::ALL.to_vec()];
        assert_eq!(tokens.iter().map(allowed).collect::<Vec<_>>(), expected);
    }

    async fn token_covers_only_its_namespaces(bed) {
        create(&bed.queue, NewToken::new([Scope::Admin]).namespaces(["orders", "a.b-c_1", "orders"])).await;
        let token = bed.queue.tokens().await.unwrap().remove(0);
        assert_eq!(token.namespaces, ["a.b-c_1", "orders"]);
        assert!(token.covers("orders") && token.covers("a.b-c_1"));
        for other in ["default", "order", "orders2", "Orders", "a.b-c_1,orders", ""] {
            assert!(!token.covers(other), "{other}");
        }
    }

    async fn expired_token_stays_listed(bed) {
        let token = create(&bed.queue, NewToken::new([Scope::Read]).expires_in(MINUTE)).await.token;
        bed.advance(MINUTE - MICRO);
        assert!(!token.is_expired(bed.now()));
        bed.advance(MICRO);
        assert!(token.is_expired(bed.now()));
        let listed = bed.queue.tokens().await.unwrap().remove(0);
        assert!(listed.is_expired(bed.now()));
        bed.queue.revoke_token(&listed.token_id).await.unwrap();
    }

    async fn secret_is_not_stored_in_the_database(bed) {
        let CreatedToken { token, secret: text } = create(&bed.queue, NewToken::new([Scope::Admin])).await;
        let secret = text.rsplit_once('_').unwrap().1;
        let row = dump(bed).await;
        assert!(row.contains(&token.token_id) && row.contains(&hex(&Sha256::digest(secret))), "{row}");
        assert!(!row.contains(secret) && !row.contains(&hex(secret.as_bytes())), "{row}");
        if bed.database.kind == Kind::Sqlite {
            for file in std::fs::read_dir(bed.database.folder.path()).unwrap() {
                let bytes = std::fs::read(file.unwrap().path()).unwrap();
                assert!(!bytes.windows(secret.len()).any(|window| window == secret.as_bytes()));
            }
        }
    }

    async fn secret_of_another_token_does_not_match(bed) {
        let one = create(&bed.queue, NewToken::new([Scope::Read])).await;
        let two = create(&bed.queue, NewToken::new([Scope::Read])).await;
        assert_ne!(one.token.token_id, two.token.token_id);
        let (_, secret) = two.secret.rsplit_once('_').unwrap();
        let mixed = format!("wl_{}_{secret}", one.token.token_id);
        assert_eq!(Token::id_of(&mixed), Some(one.token.token_id.as_str()));
        for token in bed.queue.tokens().await.unwrap() {
            assert!(!token.matches(&mixed));
            assert_eq!(token.matches(&one.secret), token == one.token);
            assert_eq!(token.matches(&two.secret), token == two.token);
        }
    }

    async fn tampered_token_does_not_match(bed) {
        let CreatedToken { token, secret: text } = create(&bed.queue, NewToken::new([Scope::Read])).await;
        for at in 0..text.len() {
            let mut tampered = text.clone();
            let other = if &text[at..=at] == "0" { "1" } else { "0" };
            tampered.replace_range(at..=at, other);
            assert!(!token.matches(&tampered), "{tampered}");
        }
        for malformed in ["", "wl_", "wl__", &text[3..], &text[..text.len() - 1], &format!("{text} "), &token.token_id] {
            assert_eq!(Token::id_of(malformed), None);
            assert!(!token.matches(malformed), "{malformed}");
        }
    }

    async fn invalid_tokens_are_refused(bed) {
        let (queue, new) = (&bed.queue, || NewToken::new([Scope::Read]));
        let error = refused(queue, NewToken::new([])).await;
        assert_eq!(error, "scopes: must have at least one of publish, consume, read, admin");
        assert_eq!(refused(queue, new().name("")).await, "name: must not be empty");
        assert_eq!(refused(queue, new().name("a\nb")).await, "name: must not contain control characters");
        assert_eq!(refused(queue, new().name("x".repeat(201))).await, "name is 201 bytes; the limit is 200 bytes");
        for bad in ["", "a b", "*", "a,b"] {
            let error = refused(queue, new().namespaces([bad])).await;
            assert!(error.starts_with(&format!("namespaces: '{bad}' is not a valid name")), "{error}");
        }
        let many = |count: usize| (0..count).map(|n| format!("n{n}"));
        let error = refused(queue, new().namespaces(many(33))).await;
        assert_eq!(error, "namespaces: has 33 namespaces; the limit is 32");
        assert_eq!(refused(queue, new().expires_in(Duration::ZERO)).await, "expires_in: must be more than zero");
        assert_eq!(refused(queue, new().expires_in(36_601 * DAY)).await, "expires_in: must be at most 100 years");
        assert_eq!(refused(queue, new().expires_in(Duration::MAX)).await, "expires_in: must be at most 100 years");

        let longest = create(queue, new().name("x".repeat(200)).namespaces(many(32)).expires_in(36_600 * DAY)).await;
        assert_eq!(longest.token.expires_at, Some(after(bed.now(), 36_600 * DAY)));
        assert_eq!(queue.tokens().await.unwrap(), [longest.token]);
    }

    async fn number_of_tokens_is_limited(bed) {
        assert_eq!(bed.queue.limits().tokens_max, 1_000);
        let limits = Limits { tokens_max: 2, ..Limits::default() };
        let queue = Queue::options(&bed.database.url).limits(limits).open().await.unwrap();
        let first = create(&queue, NewToken::new([Scope::Read])).await.token;
        create(&queue, NewToken::new([Scope::Read])).await;
        let error = refused(&queue, NewToken::new([Scope::Read])).await;
        assert_eq!(error, "token: a database has at most 2 tokens; revoke one first");
        queue.revoke_token(&first.token_id).await.unwrap();
        create(&queue, NewToken::new([Scope::Read])).await;
    }

    async fn json_contains_no_hash(bed) {
        let token = create(&bed.queue, NewToken::new([Scope::Publish, Scope::Read]).expires_in(MINUTE)).await.token;
        let expected = serde_json::json!({
            "token_id": token.token_id,
            "name": "publish,read",
            "scopes": ["publish", "read"],
            "namespaces": [],
            "created_at": "2025-12-24T10:30:00Z",
            "expires_at": "2025-12-24T10:31:00Z",
        });
        assert_eq!(serde_json::to_value(&token).unwrap(), expected);
    }
}
