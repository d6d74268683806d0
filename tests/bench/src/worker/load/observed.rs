//! Observed values: processor time and memory from the kernel, percentiles of times.

use std::time::Duration;

use anyhow::{Context, Result};

/// Processor time used so far by all threads of these processes.
pub(crate) fn processor_time(pids: &[u32]) -> Result<Duration> {
    let mut nanoseconds = 0;
    for pid in pids {
        let folder = format!("/proc/{pid}/task");
        for task in std::fs::read_dir(&folder).with_context(|| format!("read {folder}"))? {
            // A thread may have ended meanwhile.
            let Ok(text) = std::fs::read_to_string(task?.path().join("schedstat")) else {
                continue;
            };
            nanoseconds += text
                .split(' ')
                .next()
                .context("an empty schedstat")?
                .parse::<u64>()?;
        }
    }
    Ok(Duration::from_nanos(nanoseconds))
}

/// Total resident bytes of these processes.
pub(super) fn resident(pids: &[u32]) -> Result<u64> {
    pids.iter().map(|pid| resident_of(*pid)).sum()
}

fn resident_of(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let status = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .context("no VmRSS")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib << 10)
}

/// A percentile of sorted times, in microseconds.
pub(crate) fn percentile(times: &[Duration], part: f64) -> f64 {
    let index = ((times.len() - 1) as f64 * part).round();
    times[index as usize].as_secs_f64() * 1e6
}
