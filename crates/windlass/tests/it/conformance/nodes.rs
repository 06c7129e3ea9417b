//! Nodes: registration, heartbeats, stale and stopped nodes, and their removal.

use std::time::Duration;

use serde_json::json;
use windlass::{Error, HEARTBEAT, Limits, NewNode, NodeStatus, NodeView, Policy, Queue};

use crate::support::{MICRO, after, secs};
use windlass_testkit::Kind;
use windlass_testkit::postgres as server;

const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);

async fn register(queue: &Queue, node: NewNode) -> NodeView {
    queue.register_node(node).await.expect("the node can be registered")
}

async fn ids(queue: &Queue) -> Vec<String> {
    queue.nodes().await.unwrap().into_iter().map(|node| node.node_id).collect()
}

async fn statuses(queue: &Queue) -> Vec<NodeStatus> {
    queue.nodes().await.unwrap().iter().map(|node| node.status).collect()
}

/// The field that the error names.
async fn refused_field(queue: &Queue, node: NewNode) -> &'static str {
    match queue.register_node(node).await {
        Err(Error::Invalid { field, .. } | Error::TooLarge { field, .. }) => field,
        other => panic!("not refused: {other:?}"),
    }
}

conformance! {
    // C2
    async fn node_is_registered_with_all_its_fields(bed) {
        let node = NewNode::new("api-1").display_name("Shop API").description("Takes orders.");
        let node = node.metadata(&json!({ "zone": "b" })).unwrap().event_types(["order.paid", "a.*", "order.paid"]);
        let registered = register(&bed.queue, node).await;
        let expected = json!({
            "node_id": "api-1", "display_name": "Shop API", "description": "Takes orders.",
            "metadata": { "zone": "b" }, "event_types": ["a.*", "order.paid"],
            "registered_at": "2025-12-24T10:30:00Z", "last_heartbeat": "2025-12-24T10:30:00Z", "stopped_at": null,
            "status": "alive"
        });
        assert_eq!(serde_json::to_value(&registered).unwrap(), expected);
        assert_eq!(serde_json::to_value(bed.queue.nodes().await.unwrap()).unwrap(), json!([expected]));
        assert_eq!(serde_json::to_value(bed.second_queue().await.node("api-1").await.unwrap()).unwrap(), expected);
    }

    // C2
    async fn registering_again_replaces_all_but_registered_at(bed) {
        let first = NewNode::new("n").display_name("a").description("b").metadata(&json!({ "c": 1 })).unwrap();
        register(&bed.queue, first.event_types(["d"])).await;
        assert_eq!(bed.queue.stop_node("n").await, Ok(true));
        bed.advance(secs(5));
        let again = register(&bed.queue, NewNode::new("n").display_name("z")).await;
        let expected = json!({
            "node_id": "n", "display_name": "z", "description": null, "metadata": {}, "event_types": [],
            "registered_at": "2025-12-24T10:30:00Z", "last_heartbeat": "2025-12-24T10:30:05Z", "stopped_at": null,
            "status": "alive"
        });
        assert_eq!(serde_json::to_value(&again).unwrap(), expected);
        assert_eq!(ids(&bed.queue).await, ["n"]);
    }

    // C2
    async fn invalid_ids_are_normalized_or_generated(bed) {
        assert_eq!(register(&bed.queue, NewNode::new(" my node!")).await.node_id, "my-node");
        assert_eq!(bed.queue.touch_node("my node").await, Ok(true));
        for unusable in ["", " ", "€", "\0"] {
            let generated = register(&bed.queue, NewNode::new(unusable)).await.node_id;
            assert!(generated.contains(&format!("-{}-", std::process::id())), "{generated}");
        }
        assert_eq!(ids(&bed.queue).await.len(), 5);
    }

    // C2
    async fn node_ids_are_unique_per_namespace(bed) {
        let other = bed.namespace(Policy::default()).await;
        register(&bed.queue, NewNode::new("n").display_name("here")).await;
        register(&other, NewNode::new("n").display_name("there")).await;
        register(&other, NewNode::new("B")).await;
        register(&other, NewNode::new("a")).await;
        assert_eq!((ids(&bed.queue).await, ids(&other).await), (vec!["n".to_owned()], ["B", "a", "n"].map(String::from).to_vec()));
        assert_eq!(bed.queue.node("n").await.unwrap().display_name.as_deref(), Some("here"));
        bed.advance(secs(60));
        assert_eq!(other.touch_node("n").await, Ok(true));
        assert_eq!(other.stop_node("a").await, Ok(true));
        bed.advance(secs(30));
        assert_eq!(statuses(&bed.queue).await, [NodeStatus::Stale]);
        assert_eq!(statuses(&other).await, [NodeStatus::Stale, NodeStatus::Stopped, NodeStatus::Alive]);
        let nowhere = bed.queue.in_namespace("nowhere").unwrap();
        assert_eq!(nowhere.nodes().await.unwrap_err().code(), "namespace_not_found");
        assert_eq!(nowhere.register_node(NewNode::new("n")).await.unwrap_err().code(), "namespace_not_found");
    }

    // C2
    async fn silent_node_is_stale_until_its_next_heartbeat(bed) {
        assert_eq!(HEARTBEAT, secs(30));
        register(&bed.queue, NewNode::new("n")).await;
        bed.advance(secs(90) - MICRO);
        assert_eq!(statuses(&bed.queue).await, [NodeStatus::Alive]);
        bed.advance(MICRO);
        assert_eq!(statuses(&bed.queue).await, [NodeStatus::Stale]);
        assert_eq!(bed.queue.touch_node("n").await, Ok(true));
        let node = bed.queue.node("n").await.unwrap();
        assert_eq!((node.status, node.last_heartbeat), (NodeStatus::Alive, bed.now()));
    }

    async fn stopped_node_stays_stopped_until_its_next_heartbeat(bed) {
        register(&bed.queue, NewNode::new("n")).await;
        let stopped_at = bed.now();
        assert_eq!(bed.queue.stop_node("n").await, Ok(true));
        bed.advance(secs(100));
        assert_eq!(bed.queue.stop_node("n").await, Ok(true));
        let node = bed.queue.node("n").await.unwrap();
        assert_eq!((node.status, node.stopped_at), (NodeStatus::Stopped, Some(stopped_at)));
        // A heartbeat revives the node: the next process with this id may start before the previous one stops.
        assert_eq!(bed.queue.touch_node("n").await, Ok(true));
        assert_eq!(statuses(&bed.queue).await, [NodeStatus::Alive]);
    }

    async fn unregistered_node_is_not_found(bed) {
        for id in ["n", "", "\0", &"x".repeat(1_000)] {
            assert_eq!((bed.queue.touch_node(id).await, bed.queue.stop_node(id).await), (Ok(false), Ok(false)));
        }
        let unknown = Error::NodeNotFound { namespace: "default".into(), node_id: "n".into() };
        assert_eq!(bed.queue.node("n").await.unwrap_err(), unknown);
        assert_eq!(ids(&bed.queue).await, Vec::<String>::new());
    }

    async fn invalid_fields_are_refused(bed) {
        let node = || NewNode::new("n");
        assert_eq!(refused_field(&bed.queue, node().display_name("x".repeat(1_001))).await, "display_name");
        assert_eq!(refused_field(&bed.queue, node().display_name("\0")).await, "display_name");
        assert_eq!(refused_field(&bed.queue, node().description("x".repeat(10_001))).await, "description");
        assert_eq!(refused_field(&bed.queue, node().metadata(&[1]).unwrap()).await, "metadata");
        assert_eq!(refused_field(&bed.queue, node().metadata(&json!({ "a": "x".repeat(16 << 10) })).unwrap()).await, "metadata");
        for event_type in ["", "a*b", "a\n"] {
            assert_eq!(refused_field(&bed.queue, node().event_types([event_type])).await, "event_types");
        }
        let too_many = node().event_types((0..1_001).map(|n| n.to_string()));
        assert_eq!(refused_field(&bed.queue, too_many).await, "event_types");
        assert_eq!(ids(&bed.queue).await, Vec::<String>::new());
    }

    async fn number_of_nodes_is_limited(bed) {
        assert_eq!(bed.queue.limits().nodes_max, 10_000);
        let limits = Limits { nodes_max: 2, ..Limits::default() };
        let queue = Queue::options(&bed.database.url).limits(limits).open().await.unwrap();
        for id in ["a", "b"] {
            register(&queue, NewNode::new(id)).await;
        }
        let error = queue.register_node(NewNode::new("c")).await.unwrap_err().to_string();
        assert_eq!(error, "node_id: a namespace has at most 2 nodes; nodes without a heartbeat for a week are removed");
        register(&queue, NewNode::new("a")).await;
        assert_eq!(ids(&queue).await, ["a", "b"]);
        register(&bed.namespace(Policy::default()).await, NewNode::new("c")).await;
    }

    // C2
    async fn node_silent_for_a_week_is_deleted(bed) {
        let other = bed.namespace(Policy::default()).await;
        for id in ["gone", "stopped", "lives"] {
            register(&bed.queue, NewNode::new(id)).await;
        }
        register(&other, NewNode::new("gone")).await;
        bed.queue.stop_node("stopped").await.unwrap();
        bed.advance(WEEK);
        assert_eq!((bed.queue.prune_once().await, bed.queue.touch_node("lives").await), (Ok(0), Ok(true)));
        bed.advance(MICRO);
        assert_eq!((bed.queue.prune_once().await, ids(&bed.queue).await), (Ok(2), vec!["lives".to_owned()]));
        assert_eq!(ids(&other).await, ["gone"]);
    }

    // C12
    async fn heartbeat_can_be_sent_in_sql(bed) {
        if bed.database.kind == Kind::Sqlite {
            return;
        }
        let other = bed.namespace(Policy::default()).await;
        for queue in [&bed.queue, &other] {
            register(queue, NewNode::new("n")).await;
        }
        register(&other, NewNode::new("m")).await;
        server::execute(&bed.database.url, "SELECT windlass.touch_node_heartbeat('n')").await;
        for queue in [&bed.queue, &other] {
            assert!(queue.node("n").await.unwrap().last_heartbeat > after(bed.now(), WEEK));
        }
        assert_eq!(other.node("m").await.unwrap().last_heartbeat, bed.now());
    }
}
