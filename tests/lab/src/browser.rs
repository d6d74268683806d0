//! Chromium without a window, driven by its DevTools protocol over a pair of pipes
//! (chromedevtools.github.io/devtools-protocol): messages of JSON that end with a 0 byte.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use data_encoding::BASE64;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::{Value, json};

use crate::workspace;

/// Gives the browser its pipes: `$1` and `$2`, then its program and arguments.
const WITH_PIPES: &str = r#"in=$1; out=$2; shift 2; exec "$@" 3<"$in" 4>"$out""#;
/// How long the browser may take for an answer, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// A picture of a page has some MiB.
const MAX_MESSAGE: usize = 64 << 20;

/// A running browser with one page.
#[derive(Debug)]
pub struct Browser {
    process: Child,
    input: File,
    output: File,
    /// What has been read and is no whole message yet.
    read: Vec<u8>,
    next_call: u64,
    /// The page's; empty before there is one.
    session: String,
    /// Whatever the browser said by itself.
    events: Vec<Value>,
}

/// How a page is shown.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// The width of the window, in pixels.
    pub width: u32,
    /// The same.
    pub height: u32,
    /// `light` or `dark`.
    pub scheme: &'static str,
}

/// What was shown.
#[derive(Debug)]
pub struct Shown {
    /// How much wider than the window the page is, in pixels.
    pub overflow: i64,
    /// Errors of scripts, and what the browser refused.
    pub complaints: Vec<String>,
    /// The text of the page, as a reader sees it.
    pub text: String,
    /// PNG of the window.
    pub picture: Vec<u8>,
}

impl Browser {
    /// The program, if it is installed.
    #[must_use]
    pub fn find() -> Option<PathBuf> {
        workspace::find_program("chromium")
    }

    /// Starts one, with its profile in a folder.
    ///
    /// # Errors
    /// It does not start, or says nothing.
    pub fn start(program: &Path, folder: &Path) -> Result<Self> {
        Self::start_by(Command::new("sh"), program, folder)
    }

    /// The same by a shell, which may be that of a host.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_by(mut shell: Command, program: &Path, folder: &Path) -> Result<Self> {
        let pipes = [folder.join("in"), folder.join("out")];
        for pipe in &pipes {
            mkfifo(pipe, Mode::S_IRWXU).context("make a pipe")?;
        }
        shell
            .args(["-c", WITH_PIPES, "sh"])
            .args(&pipes)
            .arg(program)
            .args(["--headless", "--remote-debugging-pipe", "--no-first-run"])
            // Root of a lab has no other users to protect.
            .args(["--no-sandbox", "--disable-gpu", "--hide-scrollbars"])
            .args(["--disable-dev-shm-usage", "--disable-background-networking"])
            .args(["--disable-component-update", "--force-color-profile=srgb"])
            .arg(format!(
                "--user-data-dir={}",
                folder.join("profile").display()
            ))
            .env("HOME", folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let process = shell.spawn().context("start the browser")?;
        // Each waits for the other end.
        let input = OpenOptions::new().write(true).open(&pipes[0])?;
        let output = File::open(&pipes[1])?;
        let mut browser = Self {
            process,
            input,
            output,
            read: Vec::new(),
            next_call: 1,
            session: String::new(),
            events: Vec::new(),
        };
        browser.open_page()?;
        Ok(browser)
    }

    fn open_page(&mut self) -> Result<()> {
        let created = self.call("Target.createTarget", &json!({ "url": "about:blank" }))?;
        let target = json!({ "targetId": created["targetId"], "flatten": true });
        let attached = self.call("Target.attachToTarget", &target)?;
        let session = attached["sessionId"].as_str();
        session.context("no page")?.clone_into(&mut self.session);
        for domain in ["Page", "Runtime", "Log"] {
            self.call(&format!("{domain}.enable"), &json!({}))?;
        }
        Ok(())
    }

    /// Loads a page and looks at it.
    ///
    /// # Errors
    /// It does not load.
    pub fn show(&mut self, url: &str, view: View) -> Result<Shown> {
        let View {
            width,
            height,
            scheme,
        } = view;
        let size =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", &size)?;
        let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.call("Emulation.setEmulatedMedia", &media)?;
        self.events.clear();
        let loaded = self.call("Page.navigate", &json!({ "url": url }))?;
        ensure!(loaded["errorText"].is_null(), "{url}: {loaded}");
        while !self.has_loaded() {
            let event = self.message()?;
            self.events.push(event);
        }
        let overflow = self.evaluate("document.documentElement.scrollWidth - window.innerWidth")?;
        let text = self.evaluate("document.body.innerText")?;
        let shot = self.call("Page.captureScreenshot", &json!({ "format": "png" }))?;
        let picture = shot["data"].as_str().context("no picture")?;
        Ok(Shown {
            overflow: overflow.as_i64().context("no width")?,
            complaints: self.complaints(),
            text: text.as_str().unwrap_or_default().to_owned(),
            picture: BASE64.decode(picture.as_bytes()).context("no PNG")?,
        })
    }

    /// The value of an expression in the page.
    ///
    /// # Errors
    /// The browser does not answer.
    pub fn evaluate(&mut self, expression: &str) -> Result<Value> {
        let wanted = json!({ "expression": expression, "returnByValue": true });
        let answer = self.call("Runtime.evaluate", &wanted)?;
        Ok(answer["result"]["value"].clone())
    }

    /// Switches scripts on pages off.
    ///
    /// # Errors
    /// The browser does not answer.
    pub fn disable_scripts(&mut self) -> Result<()> {
        let wanted = json!({ "value": true });
        self.call("Emulation.setScriptExecutionDisabled", &wanted)?;
        Ok(())
    }

    fn has_loaded(&self) -> bool {
        let mut events = self.events.iter();
        events.any(|event| event["method"] == "Page.loadEventFired")
    }

    fn complaints(&self) -> Vec<String> {
        let mut complaints = Vec::new();
        for event in &self.events {
            let is_complaint = match event["method"].as_str() {
                Some("Runtime.exceptionThrown" | "Runtime.consoleAPICalled") => true,
                Some("Log.entryAdded") => event["params"]["entry"]["level"] != "verbose",
                _ => false,
            };
            if is_complaint {
                complaints.push(event["params"].to_string());
            }
        }
        complaints
    }

    fn call(&mut self, method: &str, parameters: &Value) -> Result<Value> {
        let number = self.next_call;
        self.next_call += 1;
        let mut call = json!({ "id": number, "method": method, "params": parameters });
        if !self.session.is_empty() {
            call["sessionId"] = json!(self.session);
        }
        let mut bytes = call.to_string().into_bytes();
        bytes.push(0);
        self.input.write_all(&bytes).context(method.to_owned())?;
        loop {
            let message = self.message().with_context(|| method.to_owned())?;
            if message["id"] != number {
                self.events.push(message);
                continue;
            }
            if message.get("error").is_some() {
                bail!("{method}: {}", message["error"]);
            }
            return Ok(message["result"].clone());
        }
    }

    fn message(&mut self) -> Result<Value> {
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == 0) {
                let rest = self.read.split_off(end + 1);
                self.read.pop();
                let message = std::mem::replace(&mut self.read, rest);
                return serde_json::from_slice(&message).context("the browser's message");
            }
            ensure!(self.read.len() < MAX_MESSAGE, "a message without an end");
            self.read_more()?;
        }
    }

    fn read_more(&mut self) -> Result<()> {
        let timeout = PollTimeout::try_from(PATIENCE).context("a time to wait")?;
        let ready = poll(
            &mut [PollFd::new(self.output.as_fd(), PollFlags::POLLIN)],
            timeout,
        )?;
        ensure!(ready > 0, "the browser says nothing");
        let mut chunk = [0; 64 << 10];
        let count = self.output.read(&mut chunk)?;
        ensure!(count > 0, "the browser has ended");
        self.read.extend_from_slice(&chunk[..count]);
        Ok(())
    }
}

impl Drop for Browser {
    /// Its other processes end with it.
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}
