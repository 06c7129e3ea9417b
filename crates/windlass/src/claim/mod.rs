//! Claiming: [`Queue::claim`] and the tasks that serve it.
//!
//! Requests with equal filters are served by one [`claimer`] task, which combines them into one statement and lets them
//! wait while nothing is ready. One [`watcher`] task per namespace polls for all waiting claims. [`positions`] tracks
//! how far each claimer has read. The statements are in `store`. Start with [`claimer`].

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::event::delivery::Delivery;
use crate::event::names;
use crate::observe::consumers::Consumer;
use crate::observe::inspect::{check_filter, check_types};
use crate::observe::trace;
use crate::policy::LEASE_MAX;
use crate::policy::limits::Limits;
use crate::queue::Queue;
use crate::queue::wake::lock;
use crate::topology::MAIN;

mod claimer;
mod positions;
mod requests;
mod selection;
mod undelivered;
mod watcher;

use claimer::ClaimerHandle;

/// The maximum of [`ClaimRequest::wait`].
pub const WAIT_MAX: Duration = Duration::from_secs(60);

/// A request for deliveries.
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
    group_run: usize,
    lease: Option<Duration>,
    wait: Duration,
}

impl ClaimRequest {
    /// A request for one delivery of any type from the subscription `main`, without waiting.
    pub fn new(worker_id: impl Into<String>) -> ClaimRequest {
        ClaimRequest {
            worker_id: worker_id.into(),
            subscription: MAIN.to_owned(),
            types: Vec::new(),
            except_types: Vec::new(),
            tags: Vec::new(),
            max: 1,
            group_run: 1,
            lease: None,
            wait: Duration::ZERO,
        }
    }

    /// Claims from this subscription.
    pub fn subscription(mut self, subscription: impl Into<String>) -> ClaimRequest {
        self.subscription = subscription.into();
        self
    }

    /// Only these types: exact names, or prefixes that end in `*`.
    pub fn types<T: Into<String>>(mut self, types: impl IntoIterator<Item = T>) -> ClaimRequest {
        self.types = types.into_iter().map(Into::into).collect();
        self
    }

    /// All types except these: exact names, or prefixes that end in `*`.
    pub fn except_types<T: Into<String>>(mut self, types: impl IntoIterator<Item = T>) -> ClaimRequest {
        self.except_types = types.into_iter().map(Into::into).collect();
        self
    }

    /// Only events with at least one of these tags.
    pub fn tags<T: Into<String>>(mut self, tags: impl IntoIterator<Item = T>) -> ClaimRequest {
        self.tags = tags.into_iter().map(Into::into).collect();
        self
    }

    /// The maximum number of deliveries; 1 by default.
    pub fn max(mut self, max: usize) -> ClaimRequest {
        self.max = max;
        self
    }

    /// Up to this many consecutive deliveries of one group; 1 by default.
    ///
    /// Such a run counts as one delivery towards [`max`](ClaimRequest::max). Its deliveries share one lease and must be
    /// handled in order. Other workers get deliveries of the group only when the whole run is completed. If one of its
    /// deliveries fails, is released or loses its lease, the rest of the run is released as if it had not been claimed.
    ///
    /// A run ends before a delivery that was tried before, is not due or does not match the request.
    pub fn group_run(mut self, group_run: usize) -> ClaimRequest {
        self.group_run = group_run;
        self
    }

    /// The lease duration, instead of the policy's.
    pub fn lease(mut self, lease: Duration) -> ClaimRequest {
        self.lease = Some(lease);
        self
    }

    /// How long to wait if nothing is ready, at most [`WAIT_MAX`]; by default the claim does not wait.
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
        if self.group_run == 0 || self.group_run > limits.claim_batch_max {
            return Err(Error::invalid("group_run", format!("must be from 1 to {}", limits.claim_batch_max)));
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

/// The deliveries that a claim selects, and their lease. Requests with equal filters are served by the same claimer.
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
    /// Converts the filter to its recorded form, which diagnosis reads.
    pub fn into_consumer(self, worker_id: String) -> Consumer {
        let Filter { subscription, types, except_types, tags, .. } = self;
        Consumer { subscription, types, except_types, tags, worker_id }
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

/// The claimers of this process, one per filter in use.
#[derive(Default)]
pub(crate) struct Claimers(Mutex<ClaimersByFilter>);

#[derive(Default)]
struct ClaimersByFilter {
    claimers: HashMap<Filter, ClaimerHandle>,
    /// Ended claimers are removed when the map reaches this size.
    clean_at: usize,
    /// A task that periodically records the filters in the database is running.
    recording: bool,
}

impl Claimers {
    /// Each filter in use, with the worker of its last request. A filter is in use for half a minute after that
    /// request.
    pub fn filters_in_use(&self) -> Vec<(Filter, String)> {
        let by_filter = lock(&self.0);
        let alive = by_filter.claimers.iter().filter(|(_, claimer)| !claimer.has_ended());
        alive.map(|(filter, claimer)| (filter.clone(), claimer.last_worker())).collect()
    }

    /// Returns `true` to the first caller, which then has to start the recording task.
    pub fn start_recording(&self) -> bool {
        !std::mem::replace(&mut lock(&self.0).recording, true)
    }

    /// Returns `true` if no claimer is left. The recording task then ends.
    pub fn stop_recording_if_unused(&self) -> bool {
        let mut by_filter = lock(&self.0);
        by_filter.recording = by_filter.claimers.values().any(|claimer| !claimer.has_ended());
        !by_filter.recording
    }
}

impl ClaimersByFilter {
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

/// The smallest size at which ended claimers are removed.
const CLEAN_MIN: usize = 64;

impl Queue {
    /// Claims the next delivery, if one is ready. Never waits.
    pub async fn poll(&self, worker_id: impl Into<String>) -> Result<Option<Delivery>> {
        Ok(self.claim(ClaimRequest::new(worker_id)).await?.pop())
    }

    /// Claims deliveries in this order: deadlines within the policy's horizon, earliest first; then higher priority;
    /// then earliest ready.
    pub async fn claim(&self, request: ClaimRequest) -> Result<Vec<Delivery>> {
        request.check(self.limits())?;
        self.topology_with(&request.subscription).await?;
        let (worker_id, max, group_run, wait) =
            (request.worker_id.clone(), request.max, request.group_run, request.wait);
        let filter = request.into_filter(self.namespace());
        // An idle claimer may end between the lookup and the request. Then a new one is started.
        loop {
            let claimer = self.claimer(&filter)?;
            if let Some(claimed) = claimer.claim(&worker_id, max, group_run, wait).await {
                trace::record_claim(claimed.as_deref().unwrap_or_default());
                return claimed;
            }
        }
    }

    /// Records the worker as a consumer for this filter, although it cannot claim more deliveries now.
    pub(crate) fn note_worker_of(&self, request: ClaimRequest) {
        let worker_id = request.worker_id.clone();
        if let Ok(claimer) = self.claimer(&request.into_filter(self.namespace())) {
            claimer.note_worker(&worker_id);
        }
    }

    fn claimer(&self, filter: &Filter) -> Result<ClaimerHandle> {
        let mut by_filter = lock(&self.claimers().0);
        if let Some(claimer) = by_filter.find(filter) {
            return Ok(claimer);
        }
        let max = self.limits().filters_max;
        if by_filter.claimers.len() >= max {
            by_filter.clean();
            if by_filter.claimers.len() >= max {
                return Err(Error::TooManyFilters { max });
            }
        }
        let claimer = ClaimerHandle::start(self.core().clone(), filter.clone());
        by_filter.insert(filter, &claimer);
        drop(by_filter);
        self.record_consumers_later();
        Ok(claimer)
    }
}

fn sorted(mut list: Vec<String>) -> Vec<String> {
    list.sort();
    list.dedup();
    list
}
