//! Random numbers from the operating system.

pub(crate) fn hex_128() -> String {
    hex(&bytes::<16>())
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn in_range(low: f64, high: f64) -> f64 {
    let fraction = f64::from(u32::from_le_bytes(bytes())) / f64::from(u32::MAX);
    low + (high - low) * fraction
}

fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the operating system provides random numbers");
    bytes
}
