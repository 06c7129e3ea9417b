//! Wake-up latency between processes: one process publishes, another waits in a claim.
//!
//! The claiming process runs this program as well (`wake-claimer`), so that the two share only the database. Both
//! read the system clock of the same machine.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use serde::Serialize;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use windlass::{ClaimRequest, Queue, Report};

use crate::AnyError;
use crate::event::{Order, PAID, order};
use crate::latency::{Latencies, Percentiles};
use crate::store::Backend;
use crate::usage::Usage;

/// How long the claiming process may take to start, and to claim the last event.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Args)]
pub struct Options {
    /// Only this store.
    #[arg(long, value_enum)]
    store: Option<Backend>,
    /// How many events to publish.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..))]
    events: u32,
    /// How many events to publish per second.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    rate: u32,
    /// How long to measure the CPU time of the claiming process before the first event.
    #[arg(long, default_value_t = 10)]
    idle_seconds: u64,
    /// Publish events that the claiming process does not wait for, and report only its CPU time.
    #[arg(long)]
    unrelated: bool,
    /// JSON instead of a table.
    #[arg(long)]
    json: bool,
}

impl Options {
    pub fn needs_postgres(&self) -> bool {
        self.store != Some(Backend::Sqlite)
    }
}

#[derive(Args)]
pub struct ClaimerOptions {
    url: String,
}

#[derive(Serialize)]
struct Wake {
    store: &'static str,
    events: u32,
    rate: u32,
    /// From the return of `publish`, which is when the event is committed, to the return of the claim.
    from_commit: Option<Percentiles>,
    /// From the call of `publish`.
    from_call: Option<Percentiles>,
    /// CPU time of the claiming process, in percent of one core: while nothing is published, and while events are.
    idle_cpu_percent: Option<f64>,
    busy_cpu_percent: Option<f64>,
}

pub async fn run(options: &Options) -> Result<(), AnyError> {
    let mut rows = Vec::new();
    for store in Backend::ALL.into_iter().filter(|store| options.store.is_none_or(|only| only == *store)) {
        eprintln!("{}: wake-up between processes", store.name());
        rows.push(measure(options, store).await?);
    }
    if options.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
        return Ok(());
    }
    println!(
        "| store | events | events/s | commit → claim, ms: p50 / p95 / p99 / max | publish call → claim | idle CPU \
         | busy CPU |\n| --- | ---: | ---: | --- | --- | ---: | ---: |"
    );
    for Wake { store, events, rate, from_commit, from_call, idle_cpu_percent, busy_cpu_percent } in &rows {
        let (from_commit, from_call) =
            (format_percentiles(from_commit.as_ref()), format_percentiles(from_call.as_ref()));
        let cpu = |percent: &Option<f64>| percent.map_or("–".to_owned(), |percent| format!("{percent:.2} %"));
        let (idle, busy) = (cpu(idle_cpu_percent), cpu(busy_cpu_percent));
        println!("| {store} | {events} | {rate} | {from_commit} | {from_call} | {idle} | {busy} |");
    }
    Ok(())
}

fn format_percentiles(percentiles: Option<&Percentiles>) -> String {
    percentiles
        .map_or("–".to_owned(), |p| format!("{:.1} / {:.1} / {:.1} / {:.1}", p.p50_ms, p.p95_ms, p.p99_ms, p.max_ms))
}

async fn measure(options: &Options, store: Backend) -> Result<Wake, AnyError> {
    let database = store.create_database().await?;
    let queue = Queue::open(&database.url).await?;
    let mut claimer = Claimer::start(&database.url)?;
    claimer.answer().await?;

    let ((), idle_cpu_percent) = claimer.cpu_percent(sleep(Duration::from_secs(options.idle_seconds))).await;
    let (published, busy_cpu_percent) = claimer.cpu_percent(publish(&queue, options)).await;
    let published = published?;

    let (mut of_commit, mut of_call) = (Latencies::new("from commit"), Latencies::new("from call"));
    if !options.unrelated {
        for _ in &published {
            let (n, claimed) = claimer.answer().await?;
            let (called, committed) = *published.get(n).ok_or("the claiming process answers with an unknown event")?;
            of_commit.add(Duration::from_micros(claimed.saturating_sub(committed)));
            of_call.add(Duration::from_micros(claimed.saturating_sub(called)));
        }
    }
    drop(claimer);
    queue.close().await;
    Ok(Wake {
        store: store.name(),
        events: options.events,
        rate: options.rate,
        from_commit: of_commit.percentiles(),
        from_call: of_call.percentiles(),
        idle_cpu_percent,
        busy_cpu_percent,
    })
}

/// When `publish` was called and when it returned, for each event.
async fn publish(queue: &Queue, options: &Options) -> Result<Vec<(u64, u64)>, AnyError> {
    let event_type = if options.unrelated { "order.unrelated" } else { PAID };
    let (started, mut published) = (Instant::now(), Vec::new());
    for n in 0..options.events {
        sleep_until(started + publish_time(n, options.rate)).await;
        let event = order(event_type, n as usize)?;
        let called = unix_micros();
        queue.publish(event).await?;
        published.push((called, unix_micros()));
    }
    Ok(published)
}

/// Slightly irregular, so that events do not synchronize with a poll.
fn publish_time(n: u32, rate: u32) -> Duration {
    const GOLDEN: f64 = 0.618_033_988_749_895;
    let n = f64::from(n);
    Duration::from_secs(1).mul_f64((n + (n * GOLDEN).fract()) / f64::from(rate))
}

fn unix_micros() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64
}

/// The claiming process. Dropping it closes its standard input, which ends it.
struct Claimer {
    process: Child,
    /// The number of each claimed event, and when it was claimed.
    answers: UnboundedReceiver<(usize, u64)>,
}

impl Claimer {
    fn start(url: &str) -> Result<Claimer, AnyError> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["wake-claimer", url]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn()?;
        let stdout = process.stdout.take().ok_or("the claiming process has no standard output")?;
        let (answer, answers) = unbounded_channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let numbers = line.split_once(' ').and_then(|(n, at)| Some((n.parse().ok()?, at.parse().ok()?)));
                if numbers.is_none_or(|numbers| answer.send(numbers).is_err()) {
                    return;
                }
            }
        });
        Ok(Claimer { process, answers })
    }

    async fn answer(&mut self) -> Result<(usize, u64), AnyError> {
        let answer = timeout(ANSWER_TIMEOUT, self.answers.recv()).await;
        Ok(answer.map_err(|_| "the claiming process does not answer")?.ok_or("the claiming process has ended")?)
    }

    /// Awaits a future; also returns the CPU time that the process used meanwhile, in percent of one core.
    async fn cpu_percent<T>(&self, meanwhile: impl Future<Output = T>) -> (T, Option<f64>) {
        let (pid, started) = (self.process.id(), Instant::now());
        let before = Usage::of(pid);
        let result = meanwhile.await;
        let used = before.zip(Usage::of(pid)).map(|(before, after)| after.cpu - before.cpu);
        (result, used.map(|used| 100.0 * used.as_secs_f64() / started.elapsed().as_secs_f64()))
    }
}

impl Drop for Claimer {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// Claims and completes events, and prints when each claim returned, until standard input is closed. The first line
/// is printed before the first claim.
pub async fn claim(options: &ClaimerOptions) -> Result<(), AnyError> {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let queue = Queue::open(&options.url).await?;
    print(0, unix_micros())?;
    loop {
        let request = ClaimRequest::new("wake").types([PAID]).wait(Duration::from_secs(20));
        for delivery in queue.claim(request).await? {
            let claimed = unix_micros();
            let order: Order = serde_json::from_str(delivery.event.payload.get())?;
            print(order.order_id, claimed)?;
            let _ = queue.finish(&delivery, Report::done()).await?;
        }
    }
}

fn print(n: usize, at: u64) -> Result<(), AnyError> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{n} {at}")?;
    Ok(stdout.flush()?)
}
