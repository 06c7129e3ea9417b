//! Group commit: combines concurrent calls into batches that share a transaction.
//!
//! While batches run, further calls collect in the next one. A single call runs immediately.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::error::{Error, Result};

/// How many calls may be queued. Further calls wait for space in the queue.
const QUEUED_MAX: usize = 16_384;
/// How often a batch yields to other tasks while each yield brings more calls, so that calls which begin together share
/// a batch. A single call is delayed by one yield.
const YIELDS_MAX: usize = 16;
/// Batches of at least this weight take one permit. Smaller batches take two, so that fewer run concurrently and more
/// calls collect meanwhile: their cost is dominated by the number of syncs.
const LARGE_BATCH_WEIGHT: usize = 256;

/// Combines concurrent calls into batches.
pub(crate) struct Coalescer<T, R> {
    calls: mpsc::Sender<Call<T, R>>,
}

struct Call<T, R> {
    item: T,
    weight: usize,
    reply: oneshot::Sender<Result<R>>,
}

struct Batch<T, R> {
    items: Vec<T>,
    replies: Vec<oneshot::Sender<Result<R>>>,
    weight: usize,
}

impl<T, R> Batch<T, R> {
    /// Adds the queued calls. Returns the first call that does not fit.
    fn fill(&mut self, queued: &mut mpsc::Receiver<Call<T, R>>, weight_max: usize) -> Option<Call<T, R>> {
        while let Ok(next) = queued.try_recv() {
            if self.weight + next.weight > weight_max {
                return Some(next);
            }
            self.weight += next.weight;
            self.items.push(next.item);
            self.replies.push(next.reply);
        }
        None
    }

    /// As [`Batch::fill`], and yields to tasks that are about to make calls.
    async fn fill_and_yield(
        &mut self,
        queued: &mut mpsc::Receiver<Call<T, R>>,
        weight_max: usize,
    ) -> Option<Call<T, R>> {
        let mut left_over = self.fill(queued, weight_max);
        for _ in 0..YIELDS_MAX {
            let before = self.items.len();
            if left_over.is_none() {
                tokio::task::yield_now().await;
                left_over = self.fill(queued, weight_max);
            }
            if self.items.len() == before {
                break;
            }
        }
        left_over
    }
}

impl<T: Send + 'static, R: Send + 'static> Coalescer<T, R> {
    /// `run` processes a batch and returns a result for each item in order, or one error for all. At most `in_flight`
    /// batches run concurrently, or half as many small ones. A batch weighs at most `weight_max`, unless a single item
    /// is heavier.
    pub fn new<F, Fut>(in_flight: usize, weight_max: usize, run: F) -> Coalescer<T, R>
    where
        F: Fn(Vec<T>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Vec<Result<R>>>> + Send + 'static,
    {
        let (calls, queued) = mpsc::channel(QUEUED_MAX);
        tokio::spawn(run_batches(queued, in_flight, weight_max, run));
        Coalescer { calls }
    }

    /// Runs one item in a batch with other queued items.
    pub async fn call(&self, item: T, weight: usize) -> Result<R> {
        let (reply, answer) = oneshot::channel();
        self.calls.send(Call { item, weight, reply }).await.map_err(|_| Error::Closed)?;
        answer.await.map_err(|_| Error::Closed)?
    }
}

async fn run_batches<T, R, F, Fut>(mut queued: mpsc::Receiver<Call<T, R>>, in_flight: usize, weight_max: usize, run: F)
where
    T: Send + 'static,
    R: Send + 'static,
    F: Fn(Vec<T>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Vec<Result<R>>>> + Send + 'static,
{
    let permits = Arc::new(Semaphore::new(in_flight));
    let mut left_over = None;
    loop {
        let Ok(mut permit) = permits.clone().acquire_owned().await else { return };
        let first = match left_over.take() {
            Some(call) => call,
            None => match queued.recv().await {
                Some(call) => call,
                None => return,
            },
        };
        let mut batch = Batch { items: vec![first.item], replies: vec![first.reply], weight: first.weight };
        left_over = batch.fill_and_yield(&mut queued, weight_max).await;
        if batch.weight < LARGE_BATCH_WEIGHT && in_flight > 1 && left_over.is_none() {
            let Ok(second) = permits.clone().acquire_owned().await else { return };
            permit.merge(second);
            left_over = batch.fill(&mut queued, weight_max);
        }
        let Batch { items, replies, .. } = batch;
        let answers = run(items);
        tokio::spawn(async move {
            reply_all(answers.await, replies);
            drop(permit);
        });
    }
}

/// Replies to the callers. If the batch failed, all of them get the error.
fn reply_all<R>(answers: Result<Vec<Result<R>>>, replies: Vec<oneshot::Sender<Result<R>>>) {
    match answers {
        // Sending fails if the caller has dropped its call. Ignore that.
        Ok(answers) => replies.into_iter().zip(answers).for_each(|(reply, answer)| drop(reply.send(answer))),
        Err(error) => replies.into_iter().for_each(|reply| drop(reply.send(Err(error.clone())))),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn calls_collect_while_a_batch_is_running() {
        let sizes = Arc::new(Mutex::new(Vec::new()));
        let (gate, seen) = (Arc::new(Semaphore::new(0)), sizes.clone());
        let held = gate.clone();
        let doubled = Arc::new(Coalescer::new(1, 100, move |items: Vec<u32>| {
            seen.lock().unwrap().push(items.len());
            let gate = held.clone();
            async move {
                gate.acquire().await.unwrap().forget();
                Ok(items.into_iter().map(|n| Ok(n * 2)).collect())
            }
        }));
        let call = |n: u32| {
            let doubled = doubled.clone();
            tokio::spawn(async move { doubled.call(n, 1).await })
        };
        let first = call(0);
        while sizes.lock().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        let others: Vec<_> = (1..10).map(call).collect();
        while doubled.calls.capacity() > QUEUED_MAX - 9 {
            tokio::task::yield_now().await;
        }
        gate.add_permits(2);
        for (n, call) in std::iter::once(first).chain(others).enumerate() {
            assert_eq!(call.await.unwrap().unwrap() as usize, n * 2);
        }
        assert_eq!(*sizes.lock().unwrap(), [1, 9]);
    }

    #[tokio::test]
    async fn failed_batch_is_reported_to_every_caller() {
        let failing = Coalescer::<u32, u32>::new(1, 100, |_| async { Err(Error::Closed) });
        let (a, b) = tokio::join!(failing.call(1, 1), failing.call(2, 1));
        assert_eq!((a, b), (Err(Error::Closed), Err(Error::Closed)));
    }

    /// How many batches start with four permits, for successive calls of this weight, while no batch ends.
    async fn batches_started(weight: usize) -> usize {
        let begun = Arc::new(AtomicUsize::new(0));
        let count = begun.clone();
        let endless = Arc::new(Coalescer::<(), ()>::new(4, 10_000, move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            std::future::pending()
        }));
        for _ in 0..8 {
            let endless = endless.clone();
            tokio::spawn(async move { endless.call((), weight).await });
            for _ in 0..10 * YIELDS_MAX {
                tokio::task::yield_now().await;
            }
        }
        begun.load(Ordering::Relaxed)
    }

    #[tokio::test]
    async fn large_batches_take_one_permit_and_small_ones_two() {
        assert_eq!(batches_started(LARGE_BATCH_WEIGHT).await, 4);
        assert_eq!(batches_started(LARGE_BATCH_WEIGHT - 1).await, 2);
    }
}
