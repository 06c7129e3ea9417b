//! Validation of settings, and the registration of a node.

use std::time::Duration;

use windlass::{Handler, Node};

use super::*;

fn handler(event_type: &str) -> Handler {
    Handler::new(event_type, |_, _| async { Ok(()) })
}

conformance! {
    async fn invalid_settings_are_refused_by_name(bed) {
        let queue = &bed.queue;
        let node = || Node::new(queue, "n");
        let cases = [
            ("handler: 'a' is already registered; set a different id", node().handler(handler("a")).handler(handler("a"))),
            ("handler: must not be empty", node().handler(handler("a").id(""))),
            ("type: must not be empty", node().handler(handler("").id("a"))),
            ("type: 'a*b': '*' is allowed only at the end", node().handler(handler("a*b"))),
            ("timeout: of handler 'a' must be from 1 ns to a week", node().handler(handler("a").timeout(Duration::ZERO))),
            ("timeout: of handler 'a' must be from 1 ns to a week", node().handler(handler("a").timeout(Duration::MAX))),
            ("concurrency: must be from 1 to 10000", node().concurrency(0)),
            ("concurrency: must be from 1 to 10000", node().concurrency(10_001)),
            ("concurrency: must be from 1 to 10000", node().concurrency_of("a", 0)),
            ("type: 'a*b': '*' is allowed only at the end", node().concurrency_of("a*b", 1)),
            ("metadata: must be a JSON object", node().metadata(&1)),
        ];
        for (problem, node) in cases {
            assert_eq!(node.start().await.err().unwrap().to_string(), problem);
        }
        assert!(queue.nodes().await.unwrap().is_empty());
    }

    // C2, C14
    async fn node_registers_itself_and_records_its_stop(bed) {
        let node = Node::new(&bed.queue, "api server #1")
            .display_name("API")
            .description("takes orders")
            .metadata(&serde_json::json!({ "role": "api" }))
            .on("order.*", |_, _| async { Ok(()) })
            .on_others(|_, _| async { Ok(()) });
        let node = start(node).await;
        assert_eq!(node.node_id(), "api-server-1");
        let seen = bed.queue.nodes().await.unwrap();
        assert_eq!((seen.len(), seen[0].node_id.as_str(), seen[0].status), (1, "api-server-1", windlass::NodeStatus::Alive));
        assert_eq!(seen[0].event_types, ["*", "order.*"]);
        assert_eq!(seen[0].display_name.as_deref(), Some("API"));
        node.stop().await;
        assert_eq!(bed.queue.nodes().await.unwrap()[0].status, windlass::NodeStatus::Stopped);
        let unnamed = start(Node::new(&bed.queue, "")).await;
        assert!(!unnamed.node_id().is_empty());
        unnamed.stop().await;
    }
}
