//! The log's parser against recovery's three passes, on generated, damaged, tools' and real guests' logs.

mod generated;
mod guests;
mod hostile;
mod image;
mod tools;
