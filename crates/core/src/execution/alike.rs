//! Decides which errors are alike: those that differ only in numbers, ids and the like.

/// Stands for a part that differs between like errors.
const GAP: char = '…';

/// Returns the error without the parts that usually differ between nodes and attempts. Words that contain a digit become
/// a gap; gaps that only marks separate become one.
pub fn common_part(error: &str) -> String {
    let mut text = String::with_capacity(error.len());
    let mut rest = error.trim();
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_alphanumeric();
        let end = rest.find(|c| is_word(c) != is_word(first)).unwrap_or(rest.len());
        let (part, after) = rest.split_at(end);
        rest = after;
        if !part.contains(|c: char| c.is_ascii_digit()) {
            text.push_str(part);
            continue;
        }
        let marks = text.trim_end_matches(['-', '.', ':', '_', '/', '+', ',']);
        if marks.ends_with(GAP) {
            text.truncate(marks.len());
        } else {
            text.push(GAP);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_ids_times_and_addresses_become_gaps() {
        for (error, common) in [
            ("exited with code 1", "exited with code …"),
            ("Key (order_id)=(48213) is duplicated", "Key (order_id)=(…) is duplicated"),
            ("web-01409: connection to 10.0.0.17:5432 refused", "web-…: connection to … refused"),
            ("at 2026-11-16T05:14:00Z: 01a1dffc-0b2e-4c7a disk full", "at …: … disk full"),
            ("  no space left on device\n", "no space left on device"),
            ("Größe über 12 %", "Größe über … %"),
            ("", ""),
        ] {
            assert_eq!(common_part(error), common);
        }
    }
}
