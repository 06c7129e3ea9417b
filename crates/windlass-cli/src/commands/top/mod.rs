//! `windlass top`: the queue, live and full-screen.

mod draw;
mod fetch;
mod keys;
mod view;

use std::io::{IsTerminal, stdout};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyEvent, KeyEventKind};
use ratatui::layout::Rect;
use tokio::sync::{mpsc, watch};

use self::fetch::Fetch;
use self::keys::{Screen, Then};
use self::view::View;
use crate::Result;
use crate::api::Target;
use crate::exit::Usage;
use crate::output::{print, width};
use crate::when::{now, span};

/// Watch the queue live: rates, depth, age, who works, what died
#[derive(Args)]
#[command(after_help = "\
Keys: q quit, p pause, s sort, r reverse, ↑↓ or j k move, n N other namespaces, ? help.

Examples:
  windlass top
  windlass top --server https://events.example.com --every 5s
  windlass top --once

Rates are of the last minute or two, and up to ten seconds old.")]
pub struct Top {
    #[command(flatten)]
    target: Target,
    /// How often to look
    #[arg(long, value_name = "SPAN", value_parser = span, default_value = "1s")]
    every: Duration,
    /// Print what there is to see now, and end
    #[arg(long)]
    once: bool,
}

/// Wide enough for all columns, where nobody says how wide it may be.
const WIDTH_DEFAULT: u16 = 100;
/// So high is what is shown beside the rows.
const AROUND: usize = 24;

impl Top {
    pub async fn run(self) -> Result {
        if !self.once && !stdout().is_terminal() {
            let instead = "`windlass top --once` prints what there is to see now, `windlass stats` only the counts";
            return Err(Usage(format!("there is no terminal to show it on; {instead}")).into());
        }
        let api = self.target.connect().await?;
        let queue = api.queue().cloned();
        let shown = self.target.shown();
        let fetch = Fetch::new(Arc::new(api), self.target.namespace.clone());
        let ended = match self.once {
            true => once(fetch, &shown).await,
            false => live(fetch, &shown, self.every.max(EVERY_MIN)).await,
        };
        if let Some(queue) = queue {
            queue.close().await;
        }
        ended
    }
}

const EVERY_MIN: Duration = Duration::from_millis(200);

async fn once(mut fetch: Fetch, shown: &str) -> Result {
    let view = fetch.all().await?;
    let width = width().and_then(|width| u16::try_from(width).ok()).unwrap_or(WIDTH_DEFAULT);
    let height = u16::try_from(view.rows.len() + AROUND).unwrap_or(u16::MAX).min(1_000);
    print(&plain(&view, &Screen::default(), shown, width, height))
}

/// A frame as text, without what is empty below it.
fn plain(view: &View, screen: &Screen, shown: &str, width: u16, height: u16) -> String {
    let area = Rect::new(0, 0, width, height);
    let mut buffer = Buffer::empty(area);
    draw::draw(view, screen, shown, now(), area, &mut buffer);
    text(&buffer).trim_end().to_owned()
}

fn text(buffer: &Buffer) -> String {
    let area = buffer.area;
    let line = |y: u16| {
        let mut line = String::new();
        let mut x = area.x;
        while x < area.right() {
            let cell = &buffer[(x, y)];
            line.push_str(cell.symbol());
            // A wide character takes the place of the next cell.
            x += u16::try_from(unicode_width::UnicodeWidthStr::width(cell.symbol())).unwrap_or(1).max(1);
        }
        line.trim_end().to_owned()
    };
    (area.y..area.bottom()).map(line).collect::<Vec<_>>().join("\n")
}

async fn live(fetch: Fetch, shown: &str, every: Duration) -> Result {
    let mut stopped = stop_signal()?;
    let mut terminal = ratatui::try_init()?;
    let _restored = Restored;
    let mut keys = read_keys();
    let mut screen = Screen::default();
    let (asked, asks) = watch::channel(fetch.namespace().to_owned());
    let (sender, mut views) = watch::channel(View::default());
    let fetching = tokio::spawn(keep_fetching(fetch, every, asks, sender));
    loop {
        let view = views.borrow_and_update().clone();
        screen.show(&view);
        terminal.draw(|frame| {
            let area = frame.area();
            draw::draw(screen.view(&view), &screen, shown, now(), area, frame.buffer_mut());
        })?;
        let then = tokio::select! {
            key = keys.recv() => match key {
                Some(Some(key)) => screen.press(key, &view),
                // Another size, perhaps.
                Some(None) => Then::GoOn,
                None => Then::Quit,
            },
            Ok(()) = views.changed() => Then::GoOn,
            () = &mut stopped => Then::Quit,
        };
        match then {
            Then::GoOn => {}
            Then::Quit => break,
            Then::Namespace(namespace) => drop(asked.send(namespace)),
        }
    }
    fetching.abort();
    Ok(())
}

/// Gives the terminal back, however it ends.
struct Restored;

impl Drop for Restored {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Looks again and again. What takes long is not looked at all the time.
async fn keep_fetching(
    mut fetch: Fetch,
    every: Duration,
    mut asks: watch::Receiver<String>,
    views: watch::Sender<View>,
) {
    loop {
        let begun = tokio::time::Instant::now();
        fetch.look_at(&asks.borrow_and_update());
        match fetch.next().await {
            Ok(view) => drop(views.send(view)),
            Err(error) => views.send_modify(|view| view.away = Some((error.to_string(), now()))),
        }
        let pause = every.max(begun.elapsed() * 4).saturating_sub(begun.elapsed());
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = asks.changed() => {}
        }
    }
}

/// `None` stands for anything but a key.
fn read_keys() -> mpsc::Receiver<Option<KeyEvent>> {
    let (sender, keys) = mpsc::channel(16);
    // A thread and no task: nobody can take it off a read that waits.
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            let key = match event {
                Event::Key(key) if key.kind != KeyEventKind::Release => Some(key),
                _ => None,
            };
            if sender.blocking_send(key).is_err() {
                return;
            }
        }
    });
    keys
}

#[cfg(unix)]
fn stop_signal() -> Result<std::pin::Pin<Box<dyn Future<Output = ()> + Send>>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(Box::pin(async move {
        let _ = terminate.recv().await;
    }))
}

#[cfg(not(unix))]
fn stop_signal() -> Result<std::pin::Pin<Box<dyn Future<Output = ()> + Send>>> {
    Ok(Box::pin(std::future::pending()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(view: &View, screen: &Screen, width: u16, height: u16) -> String {
        let area = Rect::new(0, 0, width, height);
        let mut buffer = Buffer::empty(area);
        draw::draw(view, screen, "sqlite://windlass.db", view::tests::NOW.parse().unwrap(), area, &mut buffer);
        text(&buffer)
    }

    #[test]
    fn a_frame_has_all_that_fits() {
        let view = view::tests::busy();
        insta::assert_snapshot!("wide", frame(&view, &Screen::default(), 120, 30));
        insta::assert_snapshot!("usual", frame(&view, &Screen::default(), 80, 24));
        insta::assert_snapshot!("tiny", frame(&view, &Screen::default(), 40, 10));
        insta::assert_snapshot!("empty", frame(&View::default(), &Screen::default(), 80, 24));
    }

    #[test]
    fn help_and_a_server_that_is_away_are_shown() {
        let mut view = view::tests::busy();
        view.away = Some(("the server cannot be reached".into(), view::tests::NOW.parse().unwrap()));
        let mut screen = Screen::default();
        screen.press(event::KeyCode::Char('?').into(), &view);
        insta::assert_snapshot!("help", frame(&view, &screen, 80, 24));
    }

    #[test]
    fn any_size_will_do() {
        let view = view::tests::busy();
        for width in [0, 1, 5, 19, 40, 300] {
            for height in [0, 1, 2, 3, 7, 12, 100] {
                frame(&view, &Screen::default(), width, height);
            }
        }
    }
}
