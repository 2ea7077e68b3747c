//! Owns how lists are cut: by rows and by bytes, because one row may have a megabyte.

use serde::Serialize;

/// The bounds of a batch, a page or a frame. A single row that is larger than the bytes is a portion of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Portion {
    pub rows: usize,
    pub bytes: usize,
}

impl Portion {
    pub const fn new(rows: usize, bytes: usize) -> Self {
        Self { rows, bytes }
    }

    /// Returns a portion without a bound in bytes: for rows that are known to be small.
    pub const fn of_rows(rows: usize) -> Self {
        Self { rows, bytes: usize::MAX }
    }

    /// Returns whether this many rows with this many bytes in total are one portion.
    pub const fn holds(self, rows: usize, bytes: usize) -> bool {
        rows <= 1 || (rows <= self.rows && bytes <= self.bytes)
    }

    /// Returns how many of the first rows with these sizes fit: at least one, if there is any.
    pub fn fitting(self, sizes: impl IntoIterator<Item = usize>) -> usize {
        let (mut rows, mut bytes) = (0, 0_usize);
        for size in sizes {
            bytes = bytes.saturating_add(size);
            if !self.holds(rows + 1, bytes) {
                break;
            }
            rows += 1;
        }
        rows
    }

    /// Takes the first rows that fit: at least one, if there is any.
    #[must_use]
    pub fn take<T>(self, rows: &mut Vec<T>, size: impl Fn(&T) -> usize) -> Vec<T> {
        let later = rows.split_off(self.fitting(rows.iter().map(size)));
        std::mem::replace(rows, later)
    }
}

/// Returns the size of a value as JSON, in bytes. A value that cannot be serialized counts as far as it could be.
pub fn json_bytes<T: Serialize + ?Sized>(value: &T) -> usize {
    struct Count(usize);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_portion_ends_at_its_rows_or_its_bytes_and_has_at_least_one_row() {
        let portion = Portion::new(3, 100);
        for (sizes, fitting) in [
            (&[][..], 0),
            (&[1, 1], 2),
            (&[1, 1, 1, 1], 3),
            (&[50, 50, 0], 3),
            (&[50, 50, 1], 2),
            (&[50, 51, 1], 1),
            (&[101, 1], 1),
            (&[usize::MAX, usize::MAX], 1),
        ] {
            assert_eq!(portion.fitting(sizes.iter().copied()), fitting, "{sizes:?}");
        }
        assert_eq!(Portion::new(0, 0).fitting([5, 5]), 1);
        assert_eq!(Portion::of_rows(2).fitting([usize::MAX; 3]), 2);
    }

    #[test]
    fn portions_are_all_rows_in_order() {
        let rows: Vec<usize> = vec![10, 60, 30, 20, 200, 1, 1, 1, 1];
        let (mut left, mut portions) = (rows.clone(), Vec::new());
        while !left.is_empty() {
            portions.push(Portion::new(3, 100).take(&mut left, |size| *size));
        }
        assert_eq!(portions, [vec![10, 60, 30], vec![20], vec![200], vec![1, 1, 1], vec![1]]);
        assert_eq!(portions.concat(), rows);
    }

    #[test]
    fn the_size_of_a_value_is_the_length_of_its_json() {
        let value = serde_json::json!({"a": [1, 2.5, null, "x\n\u{1}é"]});
        assert_eq!(json_bytes(&value), value.to_string().len());
    }
}
