//! One tab, used as a person would: by the pointer and the keyboard, and by waiting for what it shows.

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

/// The page must show what a test waits for within this.
const PATIENCE: Duration = Duration::from_secs(20);
const BETWEEN_LOOKS: Duration = Duration::from_millis(25);

pub const PHONE: (u32, u32) = (390, 844);
pub const DESKTOP: (u32, u32) = (1280, 900);

pub struct Page {
    devtools: Devtools,
    /// Of the test, for its pictures.
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

    /// Switches the page's own scripts off.
    pub async fn without_scripts(&mut self) {
        self.call("Emulation.setScriptExecutionDisabled", json!({ "value": true })).await;
    }

    /// Until the page at this path of the server has been loaded.
    pub async fn goto(&mut self, path: &str) {
        let url = format!("{}{path}", self.origin);
        let went = self.call("Page.navigate", json!({ "url": url })).await;
        assert!(went["errorText"].is_null(), "{url}: {went}");
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'").await;
    }

    /// What an expression is in the page.
    pub async fn eval(&mut self, expression: &str) -> Value {
        self.try_eval(expression).await.unwrap_or_else(|error| panic!("{expression}: {error}"))
    }

    /// Fails while the page gives way to another.
    async fn try_eval(&mut self, expression: &str) -> Result<Value, String> {
        let params = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let mut answer = self.devtools.call("Runtime.evaluate", params).await?;
        match answer["exceptionDetails"]["exception"]["description"].as_str() {
            Some(thrown) => Err(thrown.to_owned()),
            None => Ok(answer["result"]["value"].take()),
        }
    }

    /// Waits until an expression is true of the page.
    pub async fn until(&mut self, expression: &str) {
        self.wait(&format!("!!({expression})")).await;
    }

    /// Waits until some element shows this text.
    pub async fn until_shows(&mut self, css: &str, text: &str) {
        self.until(&format!("{}.length", found(css, text))).await;
    }

    /// Looks until an expression is neither null nor false.
    async fn wait(&mut self, expression: &str) -> Value {
        let started = Instant::now();
        loop {
            let last = self.try_eval(expression).await;
            match last {
                Ok(value) if !value.is_null() && value != json!(false) => return value,
                _ if started.elapsed() < PATIENCE => tokio::time::sleep(BETWEEN_LOOKS).await,
                last => self.give_up(expression, &last).await,
            }
        }
    }

    async fn give_up(&mut self, expression: &str, last: &Result<Value, String>) -> ! {
        let picture = self.picture("gave-up").await;
        let place = self.try_eval("location.href").await;
        let shown = self.try_eval("document.body.innerText.slice(0, 3000)").await;
        let shown = shown.ok().and_then(|shown| shown.as_str().map(str::to_owned)).unwrap_or_default();
        let problems = self.take_problems().await;
        panic!(
            "still not after {PATIENCE:?}: {expression}\nlast: {last:?}\nat {place:?} ({}), problems: {problems:?}\n\n{shown}",
            picture.display()
        )
    }

    /// Clicks the one visible element of this kind.
    pub async fn click(&mut self, css: &str) {
        self.click_text(css, "").await;
    }

    /// Clicks the one visible element of this kind that shows this text.
    pub async fn click_text(&mut self, css: &str, text: &str) {
        let place = self.wait(&format!("({POINT})({})", found(css, text))).await;
        let event = |kind| json!({ "type": kind, "x": place["x"], "y": place["y"], "button": "left", "clickCount": 1 });
        let events = ["mouseMoved", "mousePressed", "mouseReleased"].map(event);
        self.devtools.call_at_once("Input.dispatchMouseEvent", events.to_vec()).await;
    }

    /// Puts a text in place of what a field has.
    pub async fn fill(&mut self, css: &str, text: &str) {
        self.click(css).await;
        self.eval(&format!("document.querySelector({}).select()", json!(css))).await;
        self.call("Input.insertText", json!({ "text": text })).await;
    }

    /// Chooses from a list.
    pub async fn choose(&mut self, css: &str, value: &str) {
        let (css, value) = (json!(css), json!(value));
        self.until(&format!("document.querySelector({css})")).await;
        self.eval(&format!("(list => {{ list.value = {value}; list.dispatchEvent(new Event('change', {{ bubbles: true }})) }})(document.querySelector({css}))")).await;
    }

    /// Presses a key: a character, or one by its name, as `Enter`.
    pub async fn press(&mut self, key: &str) {
        self.press_in_turn(&[key]).await;
    }

    /// Presses keys without a pause. The page may give way to another before it has answered them all.
    pub async fn press_in_turn(&mut self, keys: &[&str]) {
        let strokes = keys.iter().flat_map(|key| stroke(key)).collect();
        self.devtools.call_at_once("Input.dispatchKeyEvent", strokes).await;
    }

    /// Keeps a picture of the whole page in `target/screenshots`.
    pub async fn picture(&mut self, of: &str) -> PathBuf {
        let params = json!({ "captureBeyondViewport": true });
        let taken = self.call("Page.captureScreenshot", params).await;
        let png = BASE64_STANDARD.decode(taken["data"].as_str().unwrap()).unwrap();
        let folder = target().join("screenshots");
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join(format!("{}-{of}-{}.png", self.name, self.width));
        fs::write(&path, png).unwrap();
        path
    }

    /// The page must not be wider than the window.
    pub async fn check_width(&mut self) {
        let wide = self.eval("document.documentElement.scrollWidth").await.as_u64().unwrap();
        if wide > self.width.into() {
            let sticking_out = self.eval(&format!("({STICKING_OUT})({})", self.width)).await;
            let place = self.eval("location.pathname").await;
            panic!("{place} is {wide} px wide at {} px: {sticking_out}", self.width);
        }
    }

    /// No table may be wider than its place.
    pub async fn check_scrolling(&mut self) {
        let cut = self.eval(CUT).await;
        assert_eq!(cut, json!([]), "{}", self.eval("location.pathname").await);
    }

    /// What went wrong since this was last asked.
    pub async fn take_problems(&mut self) -> Vec<String> {
        // Whatever came before the answer to this has been told.
        let _ = self.try_eval("1").await;
        for told in self.devtools.told() {
            self.problems.extend(problem(&told, &self.origin));
        }
        std::mem::take(&mut self.problems)
    }

    /// Nothing went wrong but for this, which is to be expected.
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

/// A key down and up again.
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

/// The visible elements of this kind that show this text.
fn found(css: &str, text: &str) -> String {
    format!("({FOUND})({}, {})", json!(css), json!(text))
}

const FOUND: &str = "(css, text) => [...document.querySelectorAll(css)].filter(element => element.checkVisibility() && element.innerText.includes(text))";

/// Where to click the one element, if there is one and nothing lies upon it, once the page has been loaded.
const POINT: &str = "elements => {
    if (document.readyState !== 'complete' || elements.length !== 1) return null;
    const [element] = elements;
    element.scrollIntoView({ block: 'center', behavior: 'instant' });
    const box = element.getClientRects()[0];
    const point = { x: box.x + box.width / 2, y: box.y + box.height / 2 };
    return element.contains(document.elementFromPoint(point.x, point.y)) ? point : null;
}";

/// The tables that have to be scrolled.
const CUT: &str = "[...document.querySelectorAll('.scroll, .panel')]
    .filter(box => box.scrollWidth > box.clientWidth).map(box => box.outerHTML.slice(0, 120))";

/// What reaches beyond the window, for whoever has to find it.
const STICKING_OUT: &str = "width => [...document.body.querySelectorAll('*')]
    .filter(element => element.getBoundingClientRect().right > width + 0.5)
    .slice(0, 8).map(element => element.outerHTML.slice(0, 120))";

fn target() -> PathBuf {
    let usual = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(usual, PathBuf::from)
}
