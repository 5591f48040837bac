//! gzip as gzip(1) reads it: several members, and zeroes behind the last one (a tape's block, a padded object).

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::GzDecoder;

type Source = BufReader<Box<dyn Read + Send>>;

/// See the module.
pub struct Gzip {
    member: Option<GzDecoder<Source>>,
}

impl Gzip {
    pub fn new(source: Box<dyn Read + Send>) -> Self {
        Self { member: Some(GzDecoder::new(BufReader::with_capacity(1 << 16, source))) }
    }
}

impl Read for Gzip {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.member {
            match member.read(buf)? {
                0 if !buf.is_empty() => {
                    let ended = self.member.take().map(GzDecoder::into_inner);
                    self.member = ended.map_or(Ok(None), next)?;
                }
                bytes => return Ok(bytes),
            }
        }
        Ok(0)
    }
}

/// The member behind padding, if there is one.
fn next(mut source: Source) -> io::Result<Option<GzDecoder<Source>>> {
    loop {
        let ahead = source.fill_buf()?;
        match ahead.iter().position(|byte| *byte != 0) {
            None if ahead.is_empty() => return Ok(None),
            None => {
                let zeroes = ahead.len();
                source.consume(zeroes);
            }
            Some(at) if ahead[at] == 0x1f => {
                source.consume(at);
                return Ok(Some(GzDecoder::new(source)));
            }
            Some(_) => {
                let what = "behind its gzip data there is something that is neither gzip nor padding";
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
        }
    }
}
