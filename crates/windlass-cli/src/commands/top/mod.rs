//! `windlass top`: shows the queue live and full-screen.
//!
//! A task fetches a [`View`] at an interval ([`fetch`]), [`keys`] handles the keyboard, and [`draw`] draws the frame.

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

use self::fetch::ViewFetcher;
use self::keys::{KeyEffect, ScreenState};
use self::view::View;
use crate::Result;
use crate::api::NamespaceTarget;
use crate::exit::UsageError;
use crate::output::{print, terminal_width};
use crate::time::{now, parse_duration};

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
    target: NamespaceTarget,
    /// How often to look
    #[arg(long, value_name = "SPAN", value_parser = parse_duration, default_value = "1s")]
    every: Duration,
    /// Print what there is to see now, and end
    #[arg(long)]
    once: bool,
}

/// Wide enough for all columns. Used for `--once` without a terminal.
const WIDTH_DEFAULT: u16 = 100;
/// Height of a frame without its rows.
const HEIGHT_WITHOUT_ROWS: usize = 24;

impl Top {
    pub async fn run(self) -> Result {
        if !self.once && !stdout().is_terminal() {
            let alternatives =
                "`windlass top --once` prints what there is to see now, `windlass stats` only the counts";
            return Err(UsageError(format!("there is no terminal to show it on; {alternatives}")).into());
        }
        let api = self.target.connect().await?;
        let queue = api.queue().cloned();
        let source = self.target.display_name();
        let fetcher = ViewFetcher::new(Arc::new(api), self.target.namespace.clone());
        let result = match self.once {
            true => print_once(fetcher, &source).await,
            false => run_live(fetcher, &source, self.every.max(INTERVAL_MIN)).await,
        };
        if let Some(queue) = queue {
            queue.close().await;
        }
        result
    }
}

const INTERVAL_MIN: Duration = Duration::from_millis(200);

async fn print_once(mut fetcher: ViewFetcher, source: &str) -> Result {
    let view = fetcher.fetch_all().await?;
    let width = terminal_width().and_then(|width| u16::try_from(width).ok()).unwrap_or(WIDTH_DEFAULT);
    let height = u16::try_from(view.rows.len() + HEIGHT_WITHOUT_ROWS).unwrap_or(u16::MAX).min(1_000);
    print(&render_frame(&view, &ScreenState::default(), source, width, height))
}

/// Renders a frame as text, without the empty lines at its end.
fn render_frame(view: &View, screen: &ScreenState, source: &str, width: u16, height: u16) -> String {
    let area = Rect::new(0, 0, width, height);
    let mut buffer = Buffer::empty(area);
    draw::draw(view, screen, source, now(), area, &mut buffer);
    buffer_text(&buffer).trim_end().to_owned()
}

fn buffer_text(buffer: &Buffer) -> String {
    let area = buffer.area;
    let line = |y: u16| {
        let mut line = String::new();
        let mut x = area.x;
        while x < area.right() {
            let cell = &buffer[(x, y)];
            line.push_str(cell.symbol());
            // A wide character also occupies the next cell.
            x += u16::try_from(unicode_width::UnicodeWidthStr::width(cell.symbol())).unwrap_or(1).max(1);
        }
        line.trim_end().to_owned()
    };
    (area.y..area.bottom()).map(line).collect::<Vec<_>>().join("\n")
}

async fn run_live(fetcher: ViewFetcher, source: &str, interval: Duration) -> Result {
    let mut stopped = stop_signal()?;
    let mut terminal = ratatui::try_init()?;
    let _guard = TerminalGuard;
    let mut keys = read_keys();
    let mut screen = ScreenState::default();
    let (namespace_sender, namespaces) = watch::channel(fetcher.namespace().to_owned());
    let (sender, mut views) = watch::channel(View::default());
    let fetching = tokio::spawn(keep_fetching(fetcher, interval, namespaces, sender));
    loop {
        let view = views.borrow_and_update().clone();
        screen.clamp_to(&view);
        terminal.draw(|frame| {
            let area = frame.area();
            draw::draw(screen.view(&view), &screen, source, now(), area, frame.buffer_mut());
        })?;
        let effect = tokio::select! {
            key = keys.recv() => match key {
                Some(Some(key)) => screen.handle_key(key, &view),
                // Another event, such as a new terminal size: redraw.
                Some(None) => KeyEffect::Continue,
                None => KeyEffect::Quit,
            },
            Ok(()) = views.changed() => KeyEffect::Continue,
            () = &mut stopped => KeyEffect::Quit,
        };
        match effect {
            KeyEffect::Continue => {}
            KeyEffect::Quit => break,
            KeyEffect::SwitchNamespace(namespace) => drop(namespace_sender.send(namespace)),
        }
    }
    fetching.abort();
    Ok(())
}

/// Restores the terminal when dropped.
struct TerminalGuard;

impl Drop for TerminalGuard {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Fetches views at the interval. If a fetch takes long, the interval grows to four times its duration.
async fn keep_fetching(
    mut fetcher: ViewFetcher,
    interval: Duration,
    mut namespaces: watch::Receiver<String>,
    views: watch::Sender<View>,
) {
    loop {
        let started_at = tokio::time::Instant::now();
        fetcher.set_namespace(&namespaces.borrow_and_update());
        match fetcher.fetch().await {
            Ok(view) => drop(views.send(view)),
            Err(error) => views.send_modify(|view| view.error = Some((error.to_string(), now()))),
        }
        let delay = interval.max(started_at.elapsed() * 4).saturating_sub(started_at.elapsed());
        tokio::select! {
            () = tokio::time::sleep(delay) => {}
            _ = namespaces.changed() => {}
        }
    }
}

/// Reads terminal events in a thread. `None` stands for any event but a key.
fn read_keys() -> mpsc::Receiver<Option<KeyEvent>> {
    let (sender, keys) = mpsc::channel(16);
    // A thread, not a task: a blocking read cannot be canceled.
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

    fn frame(view: &View, screen: &ScreenState, width: u16, height: u16) -> String {
        let area = Rect::new(0, 0, width, height);
        let mut buffer = Buffer::empty(area);
        draw::draw(view, screen, "sqlite://windlass.db", view::tests::NOW.parse().unwrap(), area, &mut buffer);
        buffer_text(&buffer)
    }

    #[test]
    fn frame_shows_what_fits() {
        let view = view::tests::sample_view();
        insta::assert_snapshot!("wide", frame(&view, &ScreenState::default(), 120, 30));
        insta::assert_snapshot!("usual", frame(&view, &ScreenState::default(), 80, 24));
        insta::assert_snapshot!("tiny", frame(&view, &ScreenState::default(), 40, 10));
        insta::assert_snapshot!("empty", frame(&View::default(), &ScreenState::default(), 80, 24));
    }

    #[test]
    fn help_and_connection_error_are_shown() {
        let mut view = view::tests::sample_view();
        view.error = Some(("the server cannot be reached".into(), view::tests::NOW.parse().unwrap()));
        let mut screen = ScreenState::default();
        screen.handle_key(event::KeyCode::Char('?').into(), &view);
        insta::assert_snapshot!("help", frame(&view, &screen, 80, 24));
    }

    #[test]
    fn any_screen_size_can_be_drawn() {
        let view = view::tests::sample_view();
        for width in [0, 1, 5, 19, 40, 300] {
            for height in [0, 1, 2, 3, 7, 12, 100] {
                frame(&view, &ScreenState::default(), width, height);
            }
        }
    }
}
