//! Claiming: requests and their filters. [`claimer`] serves the requests.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use crate::askers::Asker;
use crate::delivery::Delivery;
use crate::error::{Error, Result};
use crate::inspect::{check_filter, check_types};
use crate::limits::Limits;
use crate::names;
use crate::policy::LEASE_MAX;
use crate::queue::Queue;
use crate::topology::MAIN;
use crate::trace;
use crate::wake::lock;

mod claimer;
mod positions;
mod requests;
mod selection;
mod undelivered;
mod watcher;

use claimer::ClaimerHandle;

/// The longest a claim waits for something to come.
pub const WAIT_MAX: Duration = Duration::from_secs(60);

/// A wish for deliveries.
///
/// ```
/// use std::time::Duration;
/// use windlass::ClaimRequest;
///
/// let request = ClaimRequest::new("worker-1").types(["order.*"]).max(10).wait(Duration::from_secs(30));
/// ```
#[derive(Debug, Clone)]
pub struct ClaimRequest {
    worker_id: String,
    subscription: String,
    types: Vec<String>,
    except_types: Vec<String>,
    tags: Vec<String>,
    max: usize,
    lease: Option<Duration>,
    wait: Duration,
}

impl ClaimRequest {
    /// One delivery of any type from the subscription `main`, for this worker, at once or not at all.
    pub fn new(worker_id: impl Into<String>) -> ClaimRequest {
        ClaimRequest {
            worker_id: worker_id.into(),
            subscription: MAIN.to_owned(),
            types: Vec::new(),
            except_types: Vec::new(),
            tags: Vec::new(),
            max: 1,
            lease: None,
            wait: Duration::ZERO,
        }
    }

    /// From another subscription.
    pub fn subscription(mut self, subscription: impl Into<String>) -> ClaimRequest {
        self.subscription = subscription.into();
        self
    }

    /// Of any of these types, by exact name or by prefix ending in `*`.
    pub fn types<T: Into<String>>(mut self, types: impl IntoIterator<Item = T>) -> ClaimRequest {
        self.types = types.into_iter().map(Into::into).collect();
        self
    }

    /// Of none of these types, by exact name or by prefix ending in `*`.
    pub fn except_types<T: Into<String>>(mut self, types: impl IntoIterator<Item = T>) -> ClaimRequest {
        self.except_types = types.into_iter().map(Into::into).collect();
        self
    }

    /// With any of these tags.
    pub fn tags<T: Into<String>>(mut self, tags: impl IntoIterator<Item = T>) -> ClaimRequest {
        self.tags = tags.into_iter().map(Into::into).collect();
        self
    }

    /// At most so many.
    pub fn max(mut self, max: usize) -> ClaimRequest {
        self.max = max;
        self
    }

    /// For so long, instead of the policy's lease.
    pub fn lease(mut self, lease: Duration) -> ClaimRequest {
        self.lease = Some(lease);
        self
    }

    /// Waits so long for the first delivery to come, at most [`WAIT_MAX`].
    pub fn wait(mut self, wait: Duration) -> ClaimRequest {
        self.wait = wait;
        self
    }

    fn into_filter(self, namespace: &str) -> Filter {
        Filter {
            namespace: namespace.to_owned(),
            subscription: self.subscription,
            types: sorted(self.types),
            except_types: sorted(self.except_types),
            tags: sorted(self.tags),
            lease: self.lease,
        }
    }

    fn check(&self, limits: &Limits) -> Result<()> {
        names::check("worker_id", &self.worker_id)?;
        check_filter(&self.types, &self.tags, limits)?;
        check_types("except_types", &self.except_types, limits)?;
        if self.max == 0 || self.max > limits.claim_batch_max {
            return Err(Error::invalid("max", format!("must be from 1 to {}", limits.claim_batch_max)));
        }
        if self.lease.is_some_and(|lease| lease > LEASE_MAX || lease.is_zero()) {
            return Err(Error::invalid("lease_ms", "must be from 1 to 604800000, a week"));
        }
        if self.wait > WAIT_MAX {
            return Err(Error::invalid("wait_ms", format!("must be at most {} ms", WAIT_MAX.as_millis())));
        }
        Ok(())
    }
}

/// What claims must share to be served by one statement.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Filter {
    pub namespace: String,
    subscription: String,
    types: Vec<String>,
    except_types: Vec<String>,
    tags: Vec<String>,
    lease: Option<Duration>,
}

impl Filter {
    /// What it selects, to be recorded for diagnosis.
    pub fn into_asker(self, worker_id: String) -> Asker {
        let Filter { subscription, types, except_types, tags, .. } = self;
        Asker { subscription, types, except_types, tags, worker_id }
    }

    #[cfg(test)]
    pub fn new(namespace: &str) -> Filter {
        Filter {
            namespace: namespace.to_owned(),
            subscription: MAIN.to_owned(),
            types: Vec::new(),
            except_types: Vec::new(),
            tags: Vec::new(),
            lease: None,
        }
    }

    #[cfg(test)]
    pub fn tag(mut self, tag: &str) -> Filter {
        self.tags.push(tag.to_owned());
        self
    }
}

/// One claimer for each filter in use.
#[derive(Default)]
pub(crate) struct Claimers(Mutex<Book>);

#[derive(Default)]
struct Book {
    claimers: HashMap<Filter, ClaimerHandle>,
    /// Those that have ended are taken out when there are so many.
    clean_at: usize,
    /// Somebody notes them now and then.
    noting: bool,
}

impl Claimers {
    /// What is asked for: each filter, and who did so last. A claimer lives on for half a minute after that.
    pub fn asked(&self) -> Vec<(Filter, String)> {
        let book = lock(&self.0);
        let alive = book.claimers.iter().filter(|(_, claimer)| !claimer.has_ended());
        alive.map(|(filter, claimer)| (filter.clone(), claimer.last_worker())).collect()
    }

    /// Whether nobody notes them yet; from now on, who asked does.
    pub fn begins_to_note(&self) -> bool {
        !std::mem::replace(&mut lock(&self.0).noting, true)
    }

    /// Whether there are none to note; then nobody does any more.
    pub fn stops_to_note(&self) -> bool {
        let mut book = lock(&self.0);
        book.noting = book.claimers.values().any(|claimer| !claimer.has_ended());
        !book.noting
    }
}

impl Book {
    fn find(&self, filter: &Filter) -> Option<ClaimerHandle> {
        self.claimers.get(filter).filter(|claimer| !claimer.has_ended()).cloned()
    }

    fn clean(&mut self) {
        self.claimers.retain(|_, claimer| !claimer.has_ended());
        self.clean_at = (self.claimers.len() * 2).max(CLEAN_MIN);
    }

    fn insert(&mut self, filter: &Filter, claimer: &ClaimerHandle) {
        if self.claimers.len() >= self.clean_at {
            self.clean();
        }
        self.claimers.insert(filter.clone(), claimer.clone());
    }
}

/// Fewer claimers than this are not worth tidying up.
const CLEAN_MIN: usize = 64;

impl Queue {
    /// Takes the next delivery, if there is one. Never waits.
    pub async fn poll(&self, worker_id: impl Into<String>) -> Result<Option<Delivery>> {
        Ok(self.claim(ClaimRequest::new(worker_id)).await?.pop())
    }

    /// Takes deliveries: those near their deadline first, then by priority, then the earliest.
    pub async fn claim(&self, request: ClaimRequest) -> Result<Vec<Delivery>> {
        request.check(self.limits())?;
        self.topology_with(&request.subscription).await?;
        let (worker_id, max, wait) = (request.worker_id.clone(), request.max, request.wait);
        let filter = request.into_filter(self.namespace());
        // A claimer that was idle may end just as we find it; a new one does not.
        loop {
            let claimer = self.claimer(&filter)?;
            if let Some(answer) = claimer.claim(&worker_id, max, wait).await {
                trace::taken(answer.as_deref().unwrap_or_default());
                return answer;
            }
        }
    }

    /// Lets it be known that the request is made again as soon as there is room for more.
    pub(crate) fn goes_on_asking(&self, request: ClaimRequest) {
        let worker_id = request.worker_id.clone();
        if let Ok(claimer) = self.claimer(&request.into_filter(self.namespace())) {
            claimer.note_worker(&worker_id);
        }
    }

    fn claimer(&self, filter: &Filter) -> Result<ClaimerHandle> {
        let mut book = lock(&self.claimers().0);
        if let Some(claimer) = book.find(filter) {
            return Ok(claimer);
        }
        let max = self.limits().filters_max;
        if book.claimers.len() >= max {
            book.clean();
            if book.claimers.len() >= max {
                return Err(Error::TooManyFilters { max });
            }
        }
        let claimer = ClaimerHandle::start(self.core().clone(), filter.clone());
        book.insert(filter, &claimer);
        drop(book);
        self.note_askers_later();
        Ok(claimer)
    }
}

fn sorted(mut list: Vec<String>) -> Vec<String> {
    list.sort();
    list.dedup();
    list
}
