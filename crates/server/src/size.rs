//! Measures a row by its size as JSON.

use serde::Serialize;

/// Returns the size in bytes. A row that cannot be serialized fails when it is sent.
pub(crate) fn size<T: Serialize>(row: &T) -> usize {
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
    let _ = serde_json::to_writer(&mut count, row);
    count.0
}
