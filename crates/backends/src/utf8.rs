//! Owns the decoding of one stream of bytes into text, piece by piece.

/// Keeps a character that a read cut in two.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    held: Vec<u8>,
}

impl Decoder {
    /// Returns the text of these bytes. The beginning of a character waits for the next call. Bytes that are not UTF-8
    /// become U+FFFD, and so does NUL: it is valid UTF-8, but PostgreSQL's text cannot hold it.
    pub(crate) fn decode(&mut self, bytes: &[u8]) -> String {
        let joined;
        let mut rest = if self.held.is_empty() {
            bytes
        } else {
            self.held.extend_from_slice(bytes);
            joined = std::mem::take(&mut self.held);
            &joined
        };
        let mut text = String::with_capacity(rest.len());
        loop {
            let error = match std::str::from_utf8(rest) {
                Ok(valid) => {
                    push(&mut text, valid);
                    return text;
                }
                Err(error) => error,
            };
            let (valid, tail) = rest.split_at(error.valid_up_to());
            push(&mut text, std::str::from_utf8(valid).unwrap_or_default());
            match error.error_len() {
                Some(wrong) => {
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &tail[wrong..];
                }
                None => {
                    self.held = tail.to_vec();
                    return text;
                }
            }
        }
    }

    /// Decodes an incomplete character at the end of the stream.
    pub(crate) fn finish(&mut self) -> String {
        if self.held.is_empty() {
            return String::new();
        }
        self.held.clear();
        char::REPLACEMENT_CHARACTER.to_string()
    }
}

fn push(text: &mut String, valid: &str) {
    if valid.contains('\0') {
        text.push_str(&valid.replace('\0', "\u{fffd}"));
    } else {
        text.push_str(valid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(reads: &[&[u8]]) -> String {
        let mut decoder = Decoder::default();
        let mut text: String = reads.iter().map(|read| decoder.decode(read)).collect();
        text.push_str(&decoder.finish());
        text
    }

    #[test]
    fn a_character_that_reads_cut_apart_is_whole() {
        let bytes = "aä€😀".as_bytes();
        for cut in 0..=bytes.len() {
            assert_eq!(decoded(&[&bytes[..cut], &bytes[cut..]]), "aä€😀", "cut at {cut}");
        }
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(decoded(&single), "aä€😀");
    }

    #[test]
    fn invalid_utf8_is_marked() {
        assert_eq!(decoded(&[b"a\xffb\xc3(c\xe2\x82"]), "a\u{fffd}b\u{fffd}(c\u{fffd}");
        assert_eq!(decoded(&[b"\xe2\x82", b"x"]), "\u{fffd}x");
    }

    #[test]
    fn nul_is_marked() {
        assert_eq!(decoded(&[b"a\0b"]), "a\u{fffd}b");
    }
}
