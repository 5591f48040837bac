//! The raw results, as they are committed: what was simulated, and how its traces came about.

use afterimage_flash::{Config, FtlKind};
use serde::{Deserialize, Serialize};

use crate::findings::{Findings, Setting};
use crate::record::{Captured, Simulated};

/// Of all seeds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Results {
    /// Of the traces.
    pub setting: Setting,
    /// FTLs that were asked for.
    pub ftls: Vec<FtlKind>,
    /// Of the drives.
    pub spare: f64,
    /// How the traces came about.
    pub captured: Vec<Captured>,
    /// Drives that are finished.
    pub simulated: Vec<Simulated>,
}

impl Results {
    /// Before anything is finished.
    pub fn none(setting: Setting, ftls: Vec<FtlKind>) -> Self {
        Self { setting, ftls, spare: Config::SPARE, captured: Vec::new(), simulated: Vec::new() }
    }

    /// What is formed of them.
    pub fn findings(&self) -> Findings {
        Findings::of(self.setting.clone(), &self.ftls, self.simulated.clone())
    }
}
