//! 200 connections with transactions of 50 ms that publish to groups, while a process routes. No transaction blocks
//! another and none is aborted.

use sqlx::{Connection, Executor, PgConnection};
use windlass::Queue;

use super::{Options, median, pgbench};
use crate::AnyError;
use crate::store::Backend;

const CONNECTIONS: usize = 200;
const TABLE: &str = "CREATE TABLE orders (id bigserial PRIMARY KEY, note text NOT NULL)";
const SLEEP: &str = "\\sleep 50 ms\n";

pub async fn run(options: &Options) -> Result<(), AnyError> {
    let publish = |group: &str| format!("SELECT windlass.publish('t', '{{}}'{group});\n");
    let shared = "\\set a random(1, 4)\n\\set b random(1, 4)\n\\set c random(1, 4)\n";
    let to_group = |name: &str| publish(&format!(", group_id => 'g' || :{name}"));
    let cases = [
        ("no publish", String::new(), String::new()),
        ("no group", String::new(), publish("")),
        ("its own group", String::new(), publish(", group_id => 'own-' || :client_id")),
        ("one of four groups", shared.to_owned(), to_group("a")),
        ("two of four groups", shared.to_owned(), to_group("a") + &to_group("b")),
        ("three of four groups", shared.to_owned(), to_group("a") + &to_group("b") + &to_group("c")),
    ];
    println!("| publishes to | commits/s | of none | multixact members | deadlocks | transactions |");
    println!("| --- | ---: | ---: | ---: | ---: | ---: |");
    let database = Backend::Postgres.create_database().await?;
    let queue = Queue::open(&database.url).await?;
    PgConnection::connect(&database.url).await?.execute(TABLE).await?;
    let router = {
        let queue = queue.clone();
        tokio::spawn(super::cost::keep_router(queue))
    };
    let mut rates: Vec<Vec<f64>> = cases.iter().map(|_| Vec::new()).collect();
    let mut effects = vec![(0, 0); cases.len()];
    for _ in 0..options.rounds {
        for (at, (_, set, publish)) in cases.iter().enumerate() {
            let script = format!("{set}BEGIN;\nINSERT INTO orders (note) VALUES ('x');\n{publish}{SLEEP}COMMIT;\n");
            let before = pgbench::side_effects(&database.url).await?;
            rates[at].push(pgbench::run(&database.url, &script, CONNECTIONS, options.seconds).await?);
            let after = pgbench::side_effects(&database.url).await?;
            effects[at].0 += after.0 - before.0;
            effects[at].1 += after.1 - before.1;
        }
    }
    let counts: Vec<f64> = rates.iter().map(|rounds| rounds.iter().sum::<f64>() * options.seconds as f64).collect();
    let rates: Vec<f64> = rates.into_iter().map(median).collect();
    for (at, (name, ..)) in cases.iter().enumerate() {
        let ((members, deadlocks), rate) = (effects[at], rates[at]);
        let ratio = rate / rates[0];
        println!("| {name} | {rate:.0} | {ratio:.2} | {members} | {deadlocks} | {:.0} |", counts[at]);
    }
    router.abort();
    queue.close().await;
    Ok(())
}
