//! Windlass as one of the compared systems: reads requests from stdin and writes answers to stdout.

mod embedded;
mod load;
mod over_http;
mod payload;
mod tally;

use std::io::{BufRead, Write};
use std::sync::Arc;

use clap::{Args, ValueEnum};
use serde::Serialize;
use tokio::sync::mpsc::{Receiver, channel};

use self::embedded::Embedded;
use self::over_http::OverHttp;
use self::payload::{EventShape, NumberedPayload};
use self::tally::Tally;
use crate::AnyError;
use crate::compare::protocol::{Answer, Closed, Open, Opened, Request};

#[derive(Args)]
pub struct Options {
    #[arg(value_enum)]
    system: Kind,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Kind {
    #[value(name = "windlass-sqlite")]
    Sqlite,
    #[value(name = "windlass-postgres")]
    Postgres,
    #[value(name = "windlass-http")]
    Http,
}

/// The opened system.
#[derive(Clone)]
enum System {
    Embedded(Embedded),
    OverHttp(Arc<OverHttp>),
}

/// Handlers at work.
enum Workers {
    Embedded(embedded::Workers),
    OverHttp(over_http::Workers),
}

/// One that publishes: over HTTP each has a connection of its own.
enum Caller {
    Embedded(Embedded),
    OverHttp(Box<over_http::Caller>),
}

impl System {
    async fn open(kind: Kind, open: &Open) -> Result<System, AnyError> {
        Ok(match kind {
            Kind::Http => System::OverHttp(Arc::new(OverHttp::start(open)?)),
            Kind::Sqlite | Kind::Postgres => System::Embedded(Embedded::open(open).await?),
        })
    }

    fn about(&self) -> String {
        match self {
            System::Embedded(embedded) => embedded.about(),
            System::OverHttp(server) => server.about(),
        }
    }

    /// How often each event is delivered.
    fn deliveries(&self) -> usize {
        match self {
            System::Embedded(embedded) => embedded.subscriptions(),
            System::OverHttp(_) => 1,
        }
    }

    async fn caller(&self) -> Result<Caller, AnyError> {
        Ok(match self {
            System::Embedded(embedded) => Caller::Embedded(embedded.clone()),
            System::OverHttp(server) => Caller::OverHttp(Box::new(server.caller().await?)),
        })
    }

    async fn start(&self, tally: Arc<Tally>) -> Result<Workers, AnyError> {
        Ok(match self {
            System::Embedded(embedded) => Workers::Embedded(embedded.start(tally).await?),
            System::OverHttp(server) => Workers::OverHttp(server.start_workers(tally).await?),
        })
    }

    async fn close(self) -> Result<(), AnyError> {
        match self {
            System::Embedded(embedded) => embedded.close().await?,
            System::OverHttp(server) => Arc::into_inner(server).ok_or("the server is still in use")?.stop()?,
        }
        Ok(())
    }
}

impl Workers {
    /// Returns when all handled events are recorded.
    async fn stop(self) -> Result<(), AnyError> {
        match self {
            Workers::Embedded(workers) => workers.stop().await,
            Workers::OverHttp(workers) => workers.stop().await,
        }
    }
}

impl Caller {
    /// Returns when all events are stored and synced.
    async fn publish(&mut self, events: Vec<NumberedPayload>, shape: EventShape) -> Result<(), AnyError> {
        match self {
            Caller::Embedded(embedded) => embedded.publish(events, shape).await,
            Caller::OverHttp(caller) => caller.publish(&events, shape).await,
        }
    }
}

pub async fn run(options: &Options) -> Result<(), AnyError> {
    let mut requests = requests();
    let mut system = None;
    while let Some(line) = requests.recv().await {
        let answer = match serde_json::from_str(&line) {
            Ok(request) => answer(options.system, &mut system, request).await.unwrap_or_else(|error| failed(&*error)),
            Err(error) => failed(&error),
        };
        let mut stdout = std::io::stdout().lock();
        writeln!(stdout, "{answer}")?;
        stdout.flush()?;
    }
    Ok(())
}

/// Reads requests in a thread, because reading stdin blocks.
fn requests() -> Receiver<String> {
    let (request, requests) = channel(1);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if request.blocking_send(line).is_err() {
                return;
            }
        }
    });
    requests
}

async fn answer(kind: Kind, system: &mut Option<System>, request: Request) -> Result<String, AnyError> {
    if let Request::Open(open) = request {
        let opened = System::open(kind, &open).await?;
        let about = opened.about();
        *system = Some(opened);
        return ok(Opened { version: env!("CARGO_PKG_VERSION").to_owned(), about });
    }
    if request == Request::Close {
        if let Some(system) = system.take() {
            system.close().await?;
        }
        return ok(Closed {});
    }
    let system = system.as_ref().ok_or("nothing is open")?;
    match request {
        Request::Publish(publish) => ok(load::publish(system, &publish).await?),
        Request::Drain(drain) => ok(load::drain(system, drain).await?),
        Request::Latency(latency) => ok(load::latency(system, latency).await?),
        Request::Steady(steady) => ok(load::steady(system, steady).await?),
        Request::Open(_) | Request::Close => Err("answered before".into()),
    }
}

fn ok<T: Serialize>(answer: T) -> Result<String, AnyError> {
    Ok(serde_json::to_string(&Answer::Ok(answer))?)
}

fn failed(error: &dyn std::error::Error) -> String {
    serde_json::json!({ "error": error.to_string() }).to_string()
}
