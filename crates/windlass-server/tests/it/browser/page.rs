//! A browser tab: clicks, keys, and waiting for content.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::chromium::Chromium;
use super::devtools::Devtools;
use super::problems::problem;

/// How long to wait for a condition.
const WAIT_TIMEOUT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(25);

pub const PHONE: (u32, u32) = (390, 844);
pub const DESKTOP: (u32, u32) = (1280, 900);

pub struct Page {
    devtools: Devtools,
    /// Name of the test, for its screenshots.
    name: &'static str,
    origin: String,
    width: u32,
    problems: Vec<String>,
    _chromium: Chromium,
}

impl Page {
    pub async fn open(name: &'static str, address: SocketAddr) -> Page {
        let chromium = Chromium::start();
        let devtools = Devtools::open(&chromium.url).await;
        let origin = format!("http://{address}");
        let mut page = Page { devtools, name, origin, width: 0, problems: Vec::new(), _chromium: chromium };
        for domain in ["Page", "Runtime", "Log", "Network"] {
            page.call(&format!("{domain}.enable"), json!({})).await;
        }
        page.size(DESKTOP).await;
        page
    }

    async fn call(&mut self, method: &str, params: Value) -> Value {
        self.devtools.call(method, params).await.unwrap()
    }

    pub async fn size(&mut self, (width, height): (u32, u32)) {
        self.width = width;
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.call("Emulation.setDeviceMetricsOverride", metrics).await;
    }

    pub async fn dark(&mut self, dark: bool) {
        let value = if dark { "dark" } else { "light" };
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": value }] });
        self.call("Emulation.setEmulatedMedia", features).await;
    }

    /// Disables the scripts of the page.
    pub async fn without_scripts(&mut self) {
        self.call("Emulation.setScriptExecutionDisabled", json!({ "value": true })).await;
    }

    /// Opens a path of the server, and waits until it is loaded.
    pub async fn goto(&mut self, path: &str) {
        let url = format!("{}{path}", self.origin);
        let went = self.call("Page.navigate", json!({ "url": url })).await;
        assert!(went["errorText"].is_null(), "{url}: {went}");
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'").await;
    }

    /// Evaluates an expression in the page.
    pub async fn eval(&mut self, expression: &str) -> Value {
        self.try_eval(expression).await.unwrap_or_else(|error| panic!("{expression}: {error}"))
    }

    /// Like [`Page::eval`]; fails while the page navigates.
    async fn try_eval(&mut self, expression: &str) -> Result<Value, String> {
        let params = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let mut answer = self.devtools.call("Runtime.evaluate", params).await?;
        match answer["exceptionDetails"]["exception"]["description"].as_str() {
            Some(thrown) => Err(thrown.to_owned()),
            None => Ok(answer["result"]["value"].take()),
        }
    }

    /// Waits until an expression is true in the page.
    pub async fn until(&mut self, expression: &str) {
        self.wait(&format!("!!({expression})")).await;
    }

    /// Waits until an element shows this text.
    pub async fn until_shows(&mut self, css: &str, text: &str) {
        self.until(&format!("{}.length", found(css, text))).await;
    }

    /// Waits until an expression is neither null nor false.
    async fn wait(&mut self, expression: &str) -> Value {
        let started = Instant::now();
        loop {
            let last = self.try_eval(expression).await;
            match last {
                Ok(value) if !value.is_null() && value != json!(false) => return value,
                _ if started.elapsed() < WAIT_TIMEOUT => tokio::time::sleep(POLL_INTERVAL).await,
                last => self.fail_wait(expression, &last).await,
            }
        }
    }

    async fn fail_wait(&mut self, expression: &str, last: &Result<Value, String>) -> ! {
        let screenshot = self.screenshot("timeout").await;
        let place = self.try_eval("location.href").await;
        let shown = self.try_eval("document.body.innerText.slice(0, 3000)").await;
        let shown = shown.ok().and_then(|shown| shown.as_str().map(str::to_owned)).unwrap_or_default();
        let problems = self.take_problems().await;
        panic!(
            "timed out after {WAIT_TIMEOUT:?}: {expression}\nlast: {last:?}\nat {place:?} ({}), problems: {problems:?}\n\n{shown}",
            screenshot.display()
        )
    }

    /// Clicks the only visible element that matches.
    pub async fn click(&mut self, css: &str) {
        self.click_text(css, "").await;
    }

    /// Clicks the only visible element that matches and shows this text.
    pub async fn click_text(&mut self, css: &str, text: &str) {
        let place = self.wait(&format!("({CLICK_POINT})({})", found(css, text))).await;
        let event = |kind| json!({ "type": kind, "x": place["x"], "y": place["y"], "button": "left", "clickCount": 1 });
        let events = ["mouseMoved", "mousePressed", "mouseReleased"].map(event);
        self.devtools.call_all("Input.dispatchMouseEvent", events.to_vec()).await;
    }

    /// Replaces the text of a field.
    pub async fn fill(&mut self, css: &str, text: &str) {
        self.click(css).await;
        self.eval(&format!("document.querySelector({}).select()", json!(css))).await;
        self.call("Input.insertText", json!({ "text": text })).await;
    }

    /// Selects an option.
    pub async fn choose(&mut self, css: &str, value: &str) {
        let (css, value) = (json!(css), json!(value));
        self.until(&format!("document.querySelector({css})")).await;
        self.eval(&format!("(list => {{ list.value = {value}; list.dispatchEvent(new Event('change', {{ bubbles: true }})) }})(document.querySelector({css}))")).await;
    }

    /// Presses a key: a character, or a name such as `Enter`.
    pub async fn press(&mut self, key: &str) {
        self.press_all(&[key]).await;
    }

    /// Presses keys without a pause. The page may navigate before it has handled all of them.
    pub async fn press_all(&mut self, keys: &[&str]) {
        let strokes = keys.iter().flat_map(|key| stroke(key)).collect();
        self.devtools.call_all("Input.dispatchKeyEvent", strokes).await;
    }

    /// Saves a screenshot of the whole page in `target/screenshots`.
    pub async fn screenshot(&mut self, of: &str) -> PathBuf {
        let params = json!({ "captureBeyondViewport": true });
        let taken = self.call("Page.captureScreenshot", params).await;
        let png = BASE64_STANDARD.decode(taken["data"].as_str().unwrap()).unwrap();
        let folder = target().join("screenshots");
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join(format!("{}-{of}-{}.png", self.name, self.width));
        fs::write(&path, png).unwrap();
        path
    }

    /// Checks that the page is not wider than the window.
    pub async fn check_width(&mut self) {
        let wide = self.eval("document.documentElement.scrollWidth").await.as_u64().unwrap();
        if wide > self.width.into() {
            let elements = self.eval(&format!("({ELEMENTS_BEYOND_WIDTH})({})", self.width)).await;
            let place = self.eval("location.pathname").await;
            panic!("{place} is {wide} px wide at {} px: {elements}", self.width);
        }
    }

    /// Checks that no table is wider than its container.
    pub async fn check_scrolling(&mut self) {
        let cut = self.eval(SCROLLING_CONTAINERS).await;
        assert_eq!(cut, json!([]), "{}", self.eval("location.pathname").await);
    }

    /// The problems since the last call.
    pub async fn take_problems(&mut self) -> Vec<String> {
        // Events that preceded this response have been received.
        let _ = self.try_eval("1").await;
        for event in self.devtools.take_events() {
            self.problems.extend(problem(&event, &self.origin));
        }
        std::mem::take(&mut self.problems)
    }

    /// Checks that exactly the expected problems occurred.
    pub async fn check_problems(&mut self, expected: &[&str]) {
        let mut problems = self.take_problems().await;
        for expected in expected {
            let before = problems.len();
            problems.retain(|problem| !problem.contains(expected));
            assert!(problems.len() < before, "no '{expected}' among {problems:?}");
        }
        assert!(problems.is_empty(), "{problems:#?}");
    }
}

/// Key down and key up.
fn stroke(key: &str) -> [Value; 2] {
    let text = match key {
        "Enter" => "\r",
        key if key.chars().count() == 1 => key,
        _ => "",
    };
    let down = if text.is_empty() { "rawKeyDown" } else { "keyDown" };
    let code = match key {
        "Enter" => 13,
        "Escape" => 27,
        "Tab" => 9,
        _ => 0,
    };
    [(down, text), ("keyUp", "")]
        .map(|(kind, text)| json!({ "type": kind, "key": key, "text": text, "windowsVirtualKeyCode": code }))
}

/// An expression for the visible elements that match and show this text.
fn found(css: &str, text: &str) -> String {
    format!("({VISIBLE_ELEMENTS})({}, {})", json!(css), json!(text))
}

const VISIBLE_ELEMENTS: &str = "(css, text) => [...document.querySelectorAll(css)].filter(element => element.checkVisibility() && element.innerText.includes(text))";

/// Where to click: the center of the only element, if the page is loaded and nothing covers the element.
const CLICK_POINT: &str = "elements => {
    if (document.readyState !== 'complete' || elements.length !== 1) return null;
    const [element] = elements;
    element.scrollIntoView({ block: 'center', behavior: 'instant' });
    const box = element.getClientRects()[0];
    const point = { x: box.x + box.width / 2, y: box.y + box.height / 2 };
    return element.contains(document.elementFromPoint(point.x, point.y)) ? point : null;
}";

/// The containers that must be scrolled.
const SCROLLING_CONTAINERS: &str = "[...document.querySelectorAll('.scroll, .panel')]
    .filter(box => box.scrollWidth > box.clientWidth).map(box => box.outerHTML.slice(0, 120))";

/// The elements beyond the window, for the error message.
const ELEMENTS_BEYOND_WIDTH: &str = "width => [...document.body.querySelectorAll('*')]
    .filter(element => element.getBoundingClientRect().right > width + 0.5)
    .slice(0, 8).map(element => element.outerHTML.slice(0, 120))";

fn target() -> PathBuf {
    let usual = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(usual, PathBuf::from)
}
