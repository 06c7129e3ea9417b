//! The statements whose plans are tested.

use super::super::{
    cancel, claim, complete, dead_letters, expire, finished_leases, group, heartbeat, lanes, prune, publish, results,
    retain, retry, route, run, stats, transition, watch,
};

/// The statements of the hot path, with their arguments in these tests.
pub fn statements() -> Vec<(&'static str, &'static str, Vec<&'static str>)> {
    let lanes = "'{1,2,3}'";
    let change = [
        "'default'",
        "NULL",
        "'{10,20}'",
        "'{1,1}'",
        "'{7,7}'",
        "'{f,f}'",
        "'{X,X}'",
        "'{1,1}'",
        "'{1,1}'",
        "'{e,e}'",
        "'{1,1}'",
    ];
    let with = |more: &[&'static str]| [&change[..], more].concat();
    let claim = |source: [&'static str; 7]| {
        let slots = ["'{9}'", "'{w}'", "'{1}'", "'2000-01-01'", "60000000", "'{}'", "'{}'", "NULL"];
        [&["'default'", "1", "NULL", "1"][..], &source, &slots].concat()
    };
    vec![
        (
            "claim lanes",
            claim::CLAIM_LANES,
            claim([lanes, "100", "60000000", "NULL", "'{0,0,0}'", "'{2000-01-01,2000-01-01,2000-01-01}'", "'{0,0,0}'"]),
        ),
        (
            "claim subscription",
            claim::CLAIM_SUBSCRIPTION,
            claim(["NULL", "100", "60000000", "0", "'{0}'", "'{2000-01-01}'", "'{0}'"]),
        ),
        ("claim many lanes", claim::CLAIM_SUBSCRIPTION, claim([lanes, "100", "NULL", "10", "'{}'", "'{}'", "'{}'"])),
        ("check behind", claim::CHECK_BEHIND, vec!["1", "10", "500", "NULL", "NULL", "NULL", "'default'"]),
        (
            "events of a claim",
            claim::EVENTS,
            vec!["'default'", "'{10,20}'", "'{13,20}'", "now() - interval '1 hour'", "now() + interval '1 hour'"],
        ),
        ("arrivals", route::ARRIVALS, vec!["'default'", "0", "'{}'", "1000"]),
        (
            "heads of arrivals",
            route::HEADS,
            vec!["'default'", "'{10,20}'", "'{13,20}'", "now() - interval '1 hour'", "now() + interval '1 hour'"],
        ),
        ("look for arrivals", route::LOOK, vec!["'default'", "10", "'{3}'", "true"]),
        ("enter groups", group::ENTER, vec!["'default'", "'{main,main}'", "'{g5,g10}'", "'{1,1}'", "true", "NULL"]),
        (
            "claim keys",
            publish::CLAIM_KEYS,
            vec!["'default'", "'{k5,k10}'", "'{1,1}'", "'{1,2}'", "NULL", "'{NULL,NULL}'"],
        ),
        ("remove arrivals", route::REMOVE, vec!["'default'", "'{10,20}'"]),
        ("poll ready", watch::POLL_READY, vec!["'default'", lanes, "'{1}'", "NULL", "'{10}'"]),
        ("expired leases", expire::EXPIRED_LEASES, vec!["'default'", "'{1}'", "NULL", "500", "1000"]),
        ("finished leases", finished_leases::REMOVE_FINISHED, vec!["'{1}'", "'{2025-01-01}'", "'{7}'"]),
        ("stuck", stats::STUCK, vec!["'default'", "60000000", "100", "NULL"]),
        ("empty lanes", lanes::EMPTY, vec!["'default'", "NULL", "0", "100"]),
        ("remove lanes", lanes::REMOVE_EMPTY, vec!["'default'", lanes]),
        ("cancel", cancel::PENDING, vec!["'default'", lanes, "'2000-01-01'", "0", "1000000", "500"]),
        ("expire", expire::EXPIRED_DELIVERIES, vec!["'default'", "NULL", "500"]),
        (
            "complete",
            complete::COMPLETE,
            vec![
                "'default'",
                "NULL",
                "'{10,20}'",
                "1",
                "'{7,7}'",
                "'{10,20}'",
                "'{10,20}'",
                "'{200,200}'",
                "'{1,1}'",
                "-1",
            ],
        ),
        ("end", transition::END, with(&["'{f,f}'"])),
        ("held", heartbeat::HELD, vec!["'default'", "'{10,20}'", "'{main,main}'", "'{7,7}'", "'{NULL,NULL}'"]),
        ("recorded", heartbeat::RECORDED, vec!["'default'", "'{10,20}'", "'{main,main}'", "'{7,7}'", "'{NULL,NULL}'"]),
        ("start", heartbeat::START, vec!["'default'", "NULL", "'{10,20}'", "'{1,1}'", "'{7,7}'"]),
        ("extend", heartbeat::EXTEND, vec!["'default'", "NULL", "'{10,20}'", "'{1,1}'", "'{7,7}'", "'{1,1}'"]),
        ("advance", group::ADVANCE, vec!["'default'", "'{main,main}'", "'{g5,g10}'", "NULL"]),
        ("lock ready", group::LOCK_READY, vec!["'default'", "'{main,main}'", "'{g5,g10}'"]),
        ("park", group::PARK, vec!["'default'", "'{main,main}'", "'{g5,g10}'"]),
        ("lock runs", group::LOCK_RUN, vec!["'default'", "'{main,main}'", "'{g5,g10}'", "'{7,7}'"]),
        (
            "release runs",
            group::RELEASE_RUN,
            vec!["'default'", "'{main,main}'", "'{g5,g10}'", "'{5,10}'", "'{1,1}'", "'{7,7}'", "'{f,t}'", "NULL"],
        ),
        (
            "extend runs",
            heartbeat::EXTEND_RUNS,
            vec!["'default'", "NULL", "'{main,main}'", "'{g5,g10}'", "'{7,7}'", "'{1,1}'"],
        ),
        ("lock groups for runs", run::LOCK_GROUPS, vec!["'default'", "'main'", "'{g5,g10}'"]),
        (
            "claim runs",
            run::CLAIM_RUNS,
            vec![
                "'default'",
                "'main'",
                "NULL",
                "'{g5,g10}'",
                "'{5,10}'",
                "'{7,7}'",
                "'{w,w}'",
                "'{9,9}'",
                "1",
                lanes,
                "60000000",
                "'{}'",
                "'{}'",
            ],
        ),
        ("lock groups", group::LOCK, vec!["'default'", "'{main,main}'", "'{g5,g10}'"]),
        (
            "leave groups",
            group::LEAVE,
            vec!["'default'", "'{main,main}'", "'{g5,g10}'", "'{1,1}'", "'{7,7}'", "'{1,1}'"],
        ),
        ("remove groups", group::REMOVE_EMPTY, vec!["'default'", "'{main,main}'", "'{g5,g10}'"]),
        ("redrive", dead_letters::TAKE, vec!["'default'", "'{10,20}'", "'{main,main}'", "NULL"]),
        (
            "delete letters",
            retain::DELETE_LETTERS,
            vec!["'default'", "'{10,20}'", "'{1,1}'", "'{2025-12-24,2025-12-24}'"],
        ),
        ("requeue", transition::REQUEUE, with(&["'{1,1}'", "'{t,t}'", "'{f,f}'", "'{f,f}'"])),
        ("lock again", retry::LOCK, vec!["'default'", "'{10,20}'", "'{1,1}'"]),
        ("hold", results::HOLD, vec!["'default'", "'{10,20}'", "'{1,1}'", "'{7,7}'"]),
        ("forget attempts", transition::FORGET_ATTEMPTS, vec!["'default'", "'{10,20}'", "'{main,main}'"]),
        ("forget events", transition::FORGET_EVENTS, vec!["'default'", "'{10,20}'", "'{2025-12-24,2025-12-24}'"]),
        (
            "delete attempts",
            retain::DELETE_ATTEMPTS,
            vec!["'default'", "'{10,20}'", "'{main,main}'", "'{2025-12-24,2025-12-24}'"],
        ),
        ("delete events", retain::DELETE_EVENTS, vec!["'default'", "'{10,20}'"]),
        ("prune", prune::RESULTS, vec!["'default'", "500"]),
        ("bury", transition::BURY, with(&["'{FAILED,FAILED}'", "'{r,r}'", "'{t,t}'"])),
    ]
}
