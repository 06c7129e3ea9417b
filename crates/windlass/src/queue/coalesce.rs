//! Group commit: while one batch is under way the next gathers, so a lone call goes at once and a
//! thousand share a commit.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::error::{Error, Result};

/// How many calls may wait; further ones wait to be let in.
const WAITING_MAX: usize = 16_384;
/// How many times others are let go first, while each time more calls come: those that begin together share a
/// batch. A lone call is held up for as long as it takes to see that nobody comes.
const GATHER_MAX: usize = 16;
/// A batch of this weight is worth a line of its own. Smaller ones take two, so that fewer are under way and more gather
/// meanwhile: then what counts is how often the database syncs.
const LARGE: usize = 256;

/// Gathers concurrent calls into batches.
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
    /// Takes whoever waits; the first that does not fit is given back.
    fn fill(&mut self, waiting: &mut mpsc::Receiver<Call<T, R>>, weight_max: usize) -> Option<Call<T, R>> {
        while let Ok(next) = waiting.try_recv() {
            if self.weight + next.weight > weight_max {
                return Some(next);
            }
            self.weight += next.weight;
            self.items.push(next.item);
            self.replies.push(next.reply);
        }
        None
    }

    /// As [`Batch::fill`], and waits for those that are about to come.
    async fn gather(&mut self, waiting: &mut mpsc::Receiver<Call<T, R>>, weight_max: usize) -> Option<Call<T, R>> {
        let mut left_over = self.fill(waiting, weight_max);
        for _ in 0..GATHER_MAX {
            let before = self.items.len();
            if left_over.is_none() {
                tokio::task::yield_now().await;
                left_over = self.fill(waiting, weight_max);
            }
            if self.items.len() == before {
                break;
            }
        }
        left_over
    }
}

impl<T: Send + 'static, R: Send + 'static> Coalescer<T, R> {
    /// `run` gets a batch and answers for each item in order, or with one error for all. At most `in_flight` batches
    /// run at once, or half as many small ones, each of at most `weight_max`, or of a single heavier item.
    pub fn new<F, Fut>(in_flight: usize, weight_max: usize, run: F) -> Coalescer<T, R>
    where
        F: Fn(Vec<T>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Vec<Result<R>>>> + Send + 'static,
    {
        let (calls, waiting) = mpsc::channel(WAITING_MAX);
        tokio::spawn(gather(waiting, in_flight, weight_max, run));
        Coalescer { calls }
    }

    /// Runs one item, together with whatever else is waiting.
    pub async fn call(&self, item: T, weight: usize) -> Result<R> {
        let (reply, answer) = oneshot::channel();
        self.calls.send(Call { item, weight, reply }).await.map_err(|_| Error::Closed)?;
        answer.await.map_err(|_| Error::Closed)?
    }
}

async fn gather<T, R, F, Fut>(mut waiting: mpsc::Receiver<Call<T, R>>, in_flight: usize, weight_max: usize, run: F)
where
    T: Send + 'static,
    R: Send + 'static,
    F: Fn(Vec<T>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Vec<Result<R>>>> + Send + 'static,
{
    let lines = Arc::new(Semaphore::new(in_flight));
    let mut left_over = None;
    loop {
        let Ok(mut line) = lines.clone().acquire_owned().await else { return };
        let first = match left_over.take() {
            Some(call) => call,
            None => match waiting.recv().await {
                Some(call) => call,
                None => return,
            },
        };
        let mut batch = Batch { items: vec![first.item], replies: vec![first.reply], weight: first.weight };
        left_over = batch.gather(&mut waiting, weight_max).await;
        if batch.weight < LARGE && in_flight > 1 && left_over.is_none() {
            let Ok(second) = lines.clone().acquire_owned().await else { return };
            line.merge(second);
            left_over = batch.fill(&mut waiting, weight_max);
        }
        let Batch { items, replies, .. } = batch;
        let answers = run(items);
        tokio::spawn(async move {
            reply_all(answers.await, replies);
            drop(line);
        });
    }
}

/// A failed batch is everybody's failure.
fn reply_all<R>(answers: Result<Vec<Result<R>>>, replies: Vec<oneshot::Sender<Result<R>>>) {
    match answers {
        // A caller that no longer listens needs no answer.
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
    async fn calls_gather_while_a_batch_is_under_way() {
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
        while doubled.calls.capacity() > WAITING_MAX - 9 {
            tokio::task::yield_now().await;
        }
        gate.add_permits(2);
        for (n, call) in std::iter::once(first).chain(others).enumerate() {
            assert_eq!(call.await.unwrap().unwrap() as usize, n * 2);
        }
        assert_eq!(*sizes.lock().unwrap(), [1, 9]);
    }

    #[tokio::test]
    async fn a_failed_batch_reaches_every_caller() {
        let failing = Coalescer::<u32, u32>::new(1, 100, |_| async { Err(Error::Closed) });
        let (a, b) = tokio::join!(failing.call(1, 1), failing.call(2, 1));
        assert_eq!((a, b), (Err(Error::Closed), Err(Error::Closed)));
    }

    /// How many batches get under way on four lines for call after call of this weight, while none ends.
    async fn under_way(weight: usize) -> usize {
        let begun = Arc::new(AtomicUsize::new(0));
        let count = begun.clone();
        let endless = Arc::new(Coalescer::<(), ()>::new(4, 10_000, move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            std::future::pending()
        }));
        for _ in 0..8 {
            let endless = endless.clone();
            tokio::spawn(async move { endless.call((), weight).await });
            for _ in 0..10 * GATHER_MAX {
                tokio::task::yield_now().await;
            }
        }
        begun.load(Ordering::Relaxed)
    }

    #[tokio::test]
    async fn large_batches_take_one_line_each_and_small_ones_two() {
        assert_eq!(under_way(LARGE).await, 4);
        assert_eq!(under_way(LARGE - 1).await, 2);
    }
}
