//! Logs that real guests left.
