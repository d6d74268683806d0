//! Metrics of the process itself, under the names that Prometheus' client libraries share:
//! `process_*`. They are read at each scrape.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::sys::resource::{Resource, getrlimit};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use rustix::param::{clock_ticks_per_second, page_size};
use rustix::time::{ClockId, clock_gettime};

/// Adds the metrics of this process. One that the system does not show is left out.
pub(crate) fn register(registry: &mut Registry) {
    let started = Stat::read().and_then(|stat| stat.started());
    registry.register_collector(Box::new(ProcessMetrics { started }));
}

#[derive(Debug)]
struct ProcessMetrics {
    /// Fixed when it is registered, so that a clock that is set later changes nothing: a change
    /// means a restart.
    started: Option<SystemTime>,
}

impl Collector for ProcessMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        if let Some(stat) = Stat::read() {
            let cpu = ConstCounter::new(seconds(stat.cpu_ticks));
            let help = "CPU time of the process, in user and system mode";
            show(&mut encoder, "process_cpu_seconds", help, &cpu)?;
            let memory = stat.resident_pages.saturating_mul(page_size() as u64);
            let help = "Memory of the process that is in RAM";
            show(
                &mut encoder,
                "process_resident_memory_bytes",
                help,
                &gauge(memory),
            )?;
            let threads = gauge(stat.threads);
            show(
                &mut encoder,
                "process_threads",
                "Threads of the process",
                &threads,
            )?;
        }
        if let Some(open) = open_files() {
            show(
                &mut encoder,
                "process_open_fds",
                "Open files and sockets",
                &gauge(open),
            )?;
        }
        if let Ok((soft, _)) = getrlimit(Resource::RLIMIT_NOFILE) {
            let help = "Limit of open files and sockets";
            show(&mut encoder, "process_max_fds", help, &gauge(soft))?;
        }
        if let Some(started) = self.started {
            let since = started.duration_since(UNIX_EPOCH).unwrap_or_default();
            let help = "Time when the process started, since 1970";
            let started = ConstGauge::new(since.as_secs_f64());
            show(&mut encoder, "process_start_time_seconds", help, &started)?;
        }
        Ok(())
    }
}

fn show(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    metric: &impl EncodeMetric,
) -> fmt::Result {
    let family = encoder.encode_descriptor(name, help, None, metric.metric_type())?;
    metric.encode(family)
}

/// A kernel's number: of 32 or of 64 bits, by processor.
fn gauge(value: impl TryInto<i64>) -> ConstGauge<i64> {
    ConstGauge::new(value.try_into().unwrap_or(i64::MAX))
}

/// The fields of `/proc/self/stat` that are shown (proc(5)).
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    /// In user and system mode.
    cpu_ticks: u64,
    threads: u64,
    /// From the boot to the start of the process.
    start_ticks: u64,
    resident_pages: u64,
}

impl Stat {
    fn read() -> Option<Self> {
        Self::parse(&std::fs::read_to_string("/proc/self/stat").ok()?)
    }

    /// The program's name, which may contain anything, ends at the last parenthesis. The state, field
    /// 3, comes after it.
    fn parse(text: &str) -> Option<Self> {
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let user_ticks = field(&fields, 14)?;
        let system_ticks = field(&fields, 15)?;
        Some(Self {
            cpu_ticks: user_ticks.saturating_add(system_ticks),
            threads: field(&fields, 20)?,
            start_ticks: field(&fields, 22)?,
            resident_pages: field(&fields, 24)?,
        })
    }

    fn started(&self) -> Option<SystemTime> {
        let up = clock_gettime(ClockId::Boottime);
        let up = Duration::new(up.tv_sec.try_into().ok()?, up.tv_nsec.try_into().ok()?);
        let age = up.saturating_sub(Duration::from_secs_f64(seconds(self.start_ticks)));
        SystemTime::now().checked_sub(age)
    }
}

/// A field by its number in proc(5), of those from field 3 on.
fn field(fields: &[&str], number: usize) -> Option<u64> {
    fields.get(number - 3)?.parse().ok()
}

#[allow(
    clippy::cast_precision_loss,
    reason = "ticks of 10 ms: exact for a million years"
)]
fn seconds(ticks: u64) -> f64 {
    ticks as f64 / clock_ticks_per_second() as f64
}

/// Without the one that reads the list.
fn open_files() -> Option<u64> {
    let listed = std::fs::read_dir("/proc/self/fd").ok()?.count();
    u64::try_from(listed).ok()?.checked_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_the_program_confuses_no_field() {
        let text = "7 (a) 1 (b c) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 9 0 4321 1000000 \
                    600 18446744073709551615 1 1";
        let expected = Stat {
            cpu_ticks: 300,
            threads: 9,
            start_ticks: 4321,
            resident_pages: 600,
        };
        assert_eq!(Stat::parse(text), Some(expected));
        assert_eq!(Stat::parse("7 (a) S 1 7"), None);
        assert_eq!(Stat::parse(""), None);
    }

    #[test]
    fn a_process_started_after_its_boot_and_before_now() {
        let started = Stat::read().unwrap().started().unwrap();
        assert!(started <= SystemTime::now());
        let boot = SystemTime::now() - up();
        assert!(started > boot, "{started:?}, boot {boot:?}");
    }

    fn up() -> Duration {
        let up = std::fs::read_to_string("/proc/uptime").unwrap();
        Duration::from_secs_f64(up.split(' ').next().unwrap().parse().unwrap())
    }

    #[test]
    fn an_open_file_is_counted() {
        // Other tests of this binary open files too: so many that theirs do not matter.
        let before = open_files().unwrap();
        let files: Vec<_> = (0..200)
            .map(|_| std::fs::File::open("/dev/null").unwrap())
            .collect();
        let now = open_files().unwrap();
        assert!(now >= before + 100, "{before}, then {now}");
        drop(files);
    }

    #[test]
    fn each_metric_is_shown_with_a_value() {
        let mut registry = Registry::default();
        register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for name in [
            "process_cpu_seconds_total",
            "process_resident_memory_bytes",
            "process_threads",
            "process_open_fds",
            "process_max_fds",
            "process_start_time_seconds",
        ] {
            let value = text
                .lines()
                .find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
            let value = value.unwrap_or_else(|| panic!("no {name}: {text}"));
            assert!(value > 0.0 || name.contains("cpu"), "{name}: {value}");
        }
    }
}
