//! The contract of Perennial's drivers.

use perennial_driver_tests::OfDriver;
use perennial_rusqlite::Pool;

async fn file() -> Option<OfDriver> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("site.db");
    let open = move || Pool::open(&path).expect("opens").into();
    Some(OfDriver::new(open, folder))
}

perennial_driver_tests::contract! { crate::file }
