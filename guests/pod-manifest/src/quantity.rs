//! Kubernetes quantities, exactly: `2048Mi` is `2Gi`, `1000m` is `1`, `1e3` is `1k`. An API server rewrites what it is
//! given, so two texts are compared by what they stand for, and never through a float.

/// A number as `mantissa · 2^twos · 10^tens`, kept exact.
#[derive(Clone, Copy, Debug)]
pub struct Quantity {
    mantissa: i128,
    twos: u32,
    tens: i32,
}

impl Quantity {
    const ZERO: Self = Self { mantissa: 0, twos: 0, tens: 0 };

    /// Whether it is above zero.
    #[must_use]
    pub fn is_positive(self) -> bool {
        self.mantissa > 0
    }

    /// Reads a quantity: sign, decimal digits with at most one point, and a suffix: `n u m k M G T P E`, `Ki Mi Gi Ti Pi
    /// Ei`, or a decimal exponent. None for anything else, and for more digits than can be compared exactly.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (negative, rest) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, suffix) = rest.split_at_checked(end)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if fraction.contains('.') || (whole.is_empty() && fraction.is_empty()) {
            return None;
        }
        let (twos, tens) = suffix_exponents(suffix)?;
        // Trailing zeros carry nothing; without them, more texts stay within what can be compared.
        let fraction = fraction.trim_end_matches('0');
        let digits = whole.chars().chain(fraction.chars());
        let mantissa = digits.map(|c| c.to_digit(10)).try_fold(0i128, |sum, digit| {
            sum.checked_mul(10)?.checked_add(i128::from(digit?)).filter(|sum| *sum < 1 << 96)
        })?;
        let tens = tens.checked_sub(i32::try_from(fraction.len()).ok()?)?;
        Some(Self { mantissa: if negative { -mantissa } else { mantissa }, twos, tens }.reduced())
    }

    /// Thousandths, rounded down; none beyond what can be told.
    #[must_use]
    pub fn milli(self) -> Option<i128> {
        let scaled = self.mantissa.checked_mul(1i128.checked_shl(self.twos).filter(|_| self.twos < 100)?)?;
        match u32::try_from(self.tens.checked_add(3)?) {
            Ok(tens) => scaled.checked_mul(10i128.checked_pow(tens)?),
            Err(_) => {
                let tens = self.tens.checked_add(3)?.unsigned_abs();
                // Beyond what a power can hold, nothing of the number is left.
                Some(10i128.checked_pow(tens).map_or(0, |power| scaled.div_euclid(power)))
            }
        }
    }

    /// Takes the tens out of the mantissa, so that values of very different suffixes can be compared.
    fn reduced(mut self) -> Self {
        if self.mantissa == 0 {
            return Self::ZERO;
        }
        while self.mantissa % 10 == 0 {
            self.mantissa /= 10;
            self.tens = self.tens.saturating_add(1);
        }
        self
    }

    /// Every factor of two and five out of the mantissa: `(odd, twos, fives)`. The same for the same number.
    fn factors(self) -> (i128, i64, i64) {
        let (mut odd, mut twos, mut fives) =
            (self.mantissa, i64::from(self.twos) + i64::from(self.tens), i64::from(self.tens));
        if odd == 0 {
            return (0, 0, 0);
        }
        while odd % 2 == 0 {
            odd /= 2;
            twos += 1;
        }
        while odd % 5 == 0 {
            odd /= 5;
            fives += 1;
        }
        (odd, twos, fives)
    }
}

/// Exponents of two and of ten.
fn suffix_exponents(suffix: &str) -> Option<(u32, i32)> {
    Some(match suffix {
        "" => (0, 0),
        "n" => (0, -9),
        "u" => (0, -6),
        "m" => (0, -3),
        "k" => (0, 3),
        "M" => (0, 6),
        "G" => (0, 9),
        "T" => (0, 12),
        "P" => (0, 15),
        "E" => (0, 18),
        "Ki" => (10, 0),
        "Mi" => (20, 0),
        "Gi" => (30, 0),
        "Ti" => (40, 0),
        "Pi" => (50, 0),
        "Ei" => (60, 0),
        exponent => {
            let digits = exponent.strip_prefix(['e', 'E'])?;
            let unsigned = digits.strip_prefix(['+', '-']).unwrap_or(digits);
            if unsigned.is_empty() || !unsigned.chars().all(|c| c.is_ascii_digit()) {
                return None;
            }
            (0, digits.parse::<i32>().ok().filter(|tens| tens.abs() <= 1000)?)
        }
    })
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.factors() == other.factors()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn same(a: &str, b: &str) -> bool {
        Quantity::parse(a).unwrap_or_else(|| panic!("{a}")) == Quantity::parse(b).unwrap_or_else(|| panic!("{b}"))
    }

    #[test]
    fn equal_however_they_are_written() {
        for (a, b) in [
            ("2048Mi", "2Gi"),
            ("1000m", "1"),
            ("1e3", "1k"),
            ("1E3", "1000"),
            ("1.5Gi", "1536Mi"),
            ("0.5", "500m"),
            (".5", "0.50"),
            ("5.", "5"),
            ("16Gi", "17179869184"),
            ("128974848", "129e6"),
            ("+1", "1"),
            ("-1000m", "-1"),
            ("0", "0Gi"),
            ("0", "-0"),
            ("1Ei", "1152921504606846976"),
            ("1000000n", "1m"),
            ("1e-3", "1m"),
            ("0.0009765625Ki", "1"),
        ] {
            assert_eq!(same(a, b), a != "128974848", "{a} {b}");
        }
    }

    #[test]
    fn unequal() {
        for (a, b) in
            [("2Gi", "2G"), ("1", "1m"), ("1", "-1"), ("2048Mi", "2047Mi"), ("9007199254740993", "9007199254740992")]
        {
            assert!(!same(a, b), "{a} {b}");
        }
    }

    #[test]
    fn what_is_none() {
        for text in [
            "", "Gi", "1.2.3", "1 Gi", "1gi", "1e", "1e+", "0x10", "1Gi ", "NaN", ".", "-", "--1", "１", "1e99999",
            "1e+-3",
        ] {
            assert!(Quantity::parse(text).is_none(), "{text}");
        }
        assert!(Quantity::parse(&"9".repeat(100)).is_none(), "more digits than can be compared exactly");
        assert!(Quantity::parse(&format!("1{}", "0".repeat(20))).is_some());
    }

    #[test]
    fn signs() {
        assert!(Quantity::parse("1m").unwrap().is_positive());
        assert!(!Quantity::parse("-1m").unwrap().is_positive());
        assert!(!Quantity::parse("0Gi").unwrap().is_positive());
    }

    #[test]
    fn thousandths() {
        for (text, milli) in
            [("1", 1000), ("1m", 1), ("1500u", 1), ("-1500u", -2), ("2Ki", 2_048_000), ("0", 0), ("1n", 0)]
        {
            assert_eq!(Quantity::parse(text).unwrap().milli(), Some(milli), "{text}");
        }
        assert_eq!(Quantity::parse("16Ti").unwrap().milli(), Some((16 << 40) * 1000));
        assert_eq!(Quantity::parse("1e30").unwrap().milli(), Some(10i128.pow(33)));
        assert_eq!(Quantity::parse("1e1000").unwrap().milli(), None);
        assert_eq!(Quantity::parse("1e-1000").unwrap().milli(), Some(0));
    }

    /// Numbers written in every way that stands for the same, compared with each other.
    #[test]
    fn every_rewriting_is_equal() {
        let mut seed = 7u64;
        for _ in 0..2000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let n = (seed >> 34) + 1;
            let forms = [
                format!("{n}Gi"),
                format!("{}Mi", n * 1024),
                format!("{}", u128::from(n) << 30),
                format!("{}Ki", u128::from(n) << 20),
                format!("{}m", (u128::from(n) << 30) * 1000),
            ];
            for a in &forms {
                for b in &forms {
                    assert!(same(a, b), "{a} {b} (seed {seed})");
                }
                assert!(!same(a, &format!("{}Gi", n + 1)), "{a} (seed {seed})");
            }
        }
    }
}
