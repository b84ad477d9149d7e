//! JSON as ECMAScript has it.

use crate::json::*;
use proptest::prelude::*;
use serde_json::{Number, Value};

fn again(text: &str) -> String {
    to_text(&parse(text, Duplicates::LastWins).unwrap_or_else(|e| panic!("{text}: {e}")))
}

#[test]
fn prints_as_ecmascript_does() {
    for (text, printed) in [
        ("12345678901234567890", "12345678901234567000"),
        ("1e400", "null"),
        ("-1e400", "null"),
        ("-0", "0"),
        ("-0.0e7", "0"),
        ("1e-400", "0"),
        ("1.0", "1"),
        ("6e4", "60000"),
        ("1e21", "1e+21"),
        ("123456789012345680000", "123456789012345680000"),
        ("0.000001", "0.000001"),
        ("1e-7", "1e-7"),
        ("5e-324", "5e-324"),
        ("9007199254740993", "9007199254740992"),
        ("0.1", "0.1"),
        ("1500.5", "1500.5"),
        (" [ 1 , [ ] , { } ] ", "[1,[],{}]"),
        (r#"{"b":1,"a":2}"#, r#"{"b":1,"a":2}"#),
        (
            r#"{"b":1,"10":2,"9":3,"01":4,"4294967295":5,"4294967294":6}"#,
            r#"{"9":3,"10":2,"4294967294":6,"b":1,"01":4,"4294967295":5}"#,
        ),
        (r#"{"a":1,"b":2,"a":3}"#, r#"{"a":3,"b":2}"#),
        (r#"{"__proto__":1}"#, r#"{"__proto__":1}"#),
        (r#""\u00fc \u6f22 \ud83d\ude00 \/""#, "\"ü 漢 😀 /\""),
        (r#""\u0000\u001f\b\f\n\r\t\"\\""#, r#""\u0000\u001f\b\f\n\r\t\"\\""#),
        ("\"\u{7f}\u{2028}\"", "\"\u{7f}\u{2028}\""),
        ("true", "true"),
        ("false", "false"),
        ("null", "null"),
    ] {
        assert_eq!(again(text), printed, "{text}");
    }
}

#[test]
fn refuses_what_is_no_json() {
    for text in [
        "",
        " ",
        "{",
        "[",
        "[1,]",
        "{\"a\":1,}",
        "{\"a\"}",
        "{a:1}",
        "{'a':1}",
        "01",
        "1.",
        ".5",
        "-",
        "+1",
        "1e",
        "1e+",
        "0x1",
        "NaN",
        "Infinity",
        "tru",
        "nul",
        "\"",
        "\"\\x\"",
        "\"\\u12\"",
        "\"\\u12g4\"",
        "\"\n\"",
        "1 2",
        "[1 2]",
        "{\"a\":1 \"b\":2}",
        "\u{feff}1",
        "//c\n1",
    ] {
        assert!(parse(text, Duplicates::LastWins).is_err(), "{text:?} was taken");
    }
    for text in
        [r#""\ud800""#, r#""\udc00""#, r#""\ud800x""#, r#""\ud800\u0041""#, r#""\udc00\ud800""#, r#""\ud800\ud800""#]
    {
        let error = parse(text, Duplicates::LastWins).unwrap_err();
        assert_eq!(error.fault, Fault::LoneSurrogate, "{text}");
    }
    let cut = parse(b"\"\xff\"", Duplicates::LastWins).unwrap_err();
    assert_eq!((cut.at, cut.fault), (1, Fault::NotUtf8));
    let twice = parse(r#"{"a":1,"b":{"c":1,"\u0063":2}}"#, Duplicates::Refuse).unwrap_err();
    assert_eq!(twice.fault, Fault::Duplicate("c".to_owned()));
    assert!(parse_object("[]", Duplicates::Refuse).is_err());
}

#[test]
fn depth_is_limited() {
    let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    assert!(parse(nested(MAX_DEPTH), Duplicates::Refuse).is_ok());
    assert_eq!(parse(nested(MAX_DEPTH + 1), Duplicates::Refuse).unwrap_err().fault, Fault::TooDeep);
    assert_eq!(parse("[".repeat(1_000_000), Duplicates::Refuse).unwrap_err().fault, Fault::TooDeep);
    assert_eq!(parse("{\"a\":".repeat(1_000_000), Duplicates::Refuse).unwrap_err().fault, Fault::TooDeep);
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<f64>().prop_map(|n| Number::from_f64(n).map_or(Value::Null, Value::Number)),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (0u32..100).prop_map(Value::from),
        any::<String>().prop_map(Value::String),
    ];
    leaf.prop_recursive(5, 64, 8, |inner| {
        let name = prop_oneof![any::<String>(), "[0-9]{1,11}", "[a-c]"];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(Value::Array),
            prop::collection::vec((name, inner), 0..8).prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn canonical_text_is_a_fixed_point(value in any_json()) {
        let text = to_text(&value);
        let parsed = parse(&text, Duplicates::Refuse).unwrap();
        prop_assert_eq!(to_text(&parsed), text.clone());
        // Another reader sees the same thing, but for the sizes of numbers that it may hold.
        let other: Value = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(to_text(&other), text);
    }

    #[test]
    fn numbers_survive_as_doubles(n in any::<f64>()) {
        let parsed = parse(format!("{n:e}"), Duplicates::Refuse);
        if n.is_finite() {
            let back = parsed.unwrap();
            prop_assert_eq!(back.as_f64().unwrap(), n);
            prop_assert_eq!(to_text(&back).parse::<f64>().unwrap(), n);
        }
    }

    #[test]
    fn never_panics(bytes in prop::collection::vec(prop_oneof![any::<u8>(), prop::sample::select(b"{}[]\",:\\u0123eE+-.dDtfn ".to_vec())], 0..64)) {
        if let Ok(value) = parse(&bytes, Duplicates::LastWins) {
            let text = to_text(&value);
            prop_assert_eq!(to_text(&parse(&text, Duplicates::Refuse).unwrap()), text);
        }
    }

    #[test]
    fn agrees_with_another_parser_on_what_is_json(text in "[\\[\\]{}\",:0-9a-b.eE+ -]{0,12}") {
        // serde_json turns numbers beyond the largest double down; ECMAScript doesn't.
        let other: Result<Value, _> = serde_json::from_str(&text);
        let ours = parse(&text, Duplicates::LastWins);
        if let Ok(other) = &other {
            prop_assert_eq!(to_text(ours.as_ref().unwrap()), to_text(other));
        } else if !other.as_ref().unwrap_err().to_string().contains("out of range") {
            prop_assert!(ours.is_err());
        }
    }
}
