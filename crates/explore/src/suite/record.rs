//! Each workload is recorded once for each contract.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use afterimage_trace::Recording;

use super::workloads::Workload;
use crate::marks::reached_end;
use crate::record::{record, ModelledHost, RecordOptions};
use crate::{ExploreError, Result};

/// The smallest redo log: recovery reads all of it for every state.
const LOG_BYTES: u64 = 16 << 20;
/// Longer than any workload of a suite takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(180);

/// Recordings of a suite, in its folder.
pub(super) struct Recordings {
    folder: PathBuf,
    reuse: bool,
    made: HashMap<PathBuf, Arc<Recording>>,
}

impl Recordings {
    /// With `reuse` what is there from an earlier run is taken.
    pub fn new(folder: &Path, reuse: bool) -> Self {
        Self { folder: folder.to_owned(), reuse, made: HashMap::new() }
    }

    /// The recording of a workload under a contract.
    pub fn get(&mut self, workload: &Workload, contract: &str) -> Result<Arc<Recording>> {
        self.get_on(workload, contract, None)
    }

    /// The same in virtual time, on a modelled host, where there is one.
    pub fn get_on(
        &mut self,
        workload: &Workload,
        contract: &str,
        host: Option<&ModelledHost>,
    ) -> Result<Arc<Recording>> {
        let below = host.map_or_else(String::new, |host| format!(" {} {}", host.device, host.file_system));
        let path = super::folder(&self.folder, &format!("{} {contract}{below}.afrec", workload.name));
        if let Some(recording) = self.made.get(&path) {
            return Ok(Arc::clone(recording));
        }
        let load = || Recording::load(&path).map_err(|e| ExploreError::Corrupt(e.to_string()));
        // One that was broken off holds another workload: what came before it failed.
        if !(self.reuse
            && path.exists()
            && load().and_then(|found| reached_end(&found)).is_ok_and(|ended| ended))
        {
            let contract = contract
                .parse()
                .map_err(|e| ExploreError::Usage(format!("{contract} is no contract: {e}")))?;
            let plain = RecordOptions::new(path.clone(), contract, workload.app.command.clone());
            let mkfs = match workload.features.as_str() {
                "" => plain.mkfs.clone(),
                features => format!("{} -O {features}", plain.mkfs),
            };
            record(&RecordOptions {
                force: true,
                mkfs,
                log_bytes_max: LOG_BYTES,
                mount_options: workload.mount.clone(),
                setup: workload.app.setup.clone(),
                check: Some(workload.app.check.to_text()),
                limit: LIMIT,
                virtual_time: host.cloned(),
                ..plain
            })?;
        }
        let recording = load().map(Arc::new)?;
        self.made.insert(path, Arc::clone(&recording));
        Ok(recording)
    }
}
