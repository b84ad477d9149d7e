//! Kubernetes quantities, as far as pods use them.

/// The bytes of a memory quantity (`2Gi`, `512Mi`, `1500M`, `1e9` isn't one); none when it isn't one.
pub(crate) fn bytes(quantity: &str) -> Option<u64> {
    let digits = quantity.find(|c: char| !c.is_ascii_digit()).unwrap_or(quantity.len());
    let (number, suffix) = quantity.split_at_checked(digits)?;
    let factor: u64 = match suffix {
        "" => 1,
        "k" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "T" => 1_000_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(factor)
}

/// The form in which an API server stores a quantity: the largest suffix that keeps it whole (`2048Mi` is `2Gi`,
/// `1000m` is `1`). What it doesn't know it leaves as it is.
pub(crate) fn canonical(quantity: &str) -> String {
    const BINARY: [&str; 5] = ["", "Ki", "Mi", "Gi", "Ti"];
    const DECIMAL: [&str; 6] = ["m", "", "k", "M", "G", "T"];
    let digits = quantity.find(|c: char| !c.is_ascii_digit()).unwrap_or(quantity.len());
    let Some((number, suffix)) = quantity.split_at_checked(digits) else { return quantity.to_owned() };
    let Ok(mut number) = number.parse::<u64>() else { return quantity.to_owned() };
    if number == 0 {
        return "0".to_owned();
    }
    let (units, step): (&[&str], u64) = if suffix.ends_with('i') { (&BINARY, 1024) } else { (&DECIMAL, 1000) };
    let Some(mut unit) = units.iter().position(|unit| *unit == suffix) else { return quantity.to_owned() };
    while number % step == 0 && unit + 1 < units.len() {
        number /= step;
        unit += 1;
    }
    format!("{number}{}", units.get(unit).copied().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::{bytes, canonical};

    #[test]
    fn reads_and_rewrites_as_an_api_server_does() {
        for (quantity, value, stored) in [
            ("2Gi", Some(2 << 30), "2Gi"),
            ("2048Mi", Some(2 << 30), "2Gi"),
            ("512Mi", Some(512 << 20), "512Mi"),
            ("1500M", Some(1_500_000_000), "1500M"),
            ("1000m", None, "1"),
            ("1500m", None, "1500m"),
            ("1000", Some(1000), "1k"),
            ("0", Some(0), "0"),
            ("0Mi", Some(0), "0"),
            ("", None, ""),
            ("lots", None, "lots"),
            ("99999999999999999999Gi", None, "99999999999999999999Gi"),
            ("18446744073709551615Ti", None, "18446744073709551615Ti"),
            ("1é", None, "1é"),
        ] {
            assert_eq!(bytes(quantity), value, "{quantity}");
            assert_eq!(canonical(quantity), stored, "{quantity}");
        }
    }
}
