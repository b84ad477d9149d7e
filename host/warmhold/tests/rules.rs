//! The built-in test rules with the real programs, on the example project and on awkward names.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    reason = "a test that stops there has failed, and says why"
)]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

/// Runs a file as a worker would: the first rule that matches, from the repository's top.
fn run(top: &Path, file: &str) -> Output {
    let rule = warmhold::config::built_in_rules()
        .into_iter()
        .find(|rule| globset::Glob::new(&rule.pattern).expect("a glob").compile_matcher().is_match(file))
        .unwrap_or_else(|| panic!("a rule for {file}"));
    let argv: Vec<_> = rule.run.iter().map(|argument| argument.replace("{file}", file)).collect();
    Command::new(&argv[0])
        .args(&argv[1..])
        .current_dir(top)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        // What the test runner itself sets would make a test believe that it runs inside another one.
        .env_remove("NODE_TEST_CONTEXT")
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}", argv[0]))
}

fn example() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/hello-tests")
}

fn files(folder: &str) -> Vec<String> {
    let mut files: Vec<_> = fs::read_dir(example().join(folder))
        .expect("the example")
        .map(|entry| format!("{folder}/{}", entry.expect("an entry").file_name().to_str().expect("UTF-8")))
        .filter(|file| !file.ends_with("__pycache__"))
        .collect();
    files.sort();
    files
}

#[test]
fn the_examples_tests_pass_and_the_failing_ones_fail() {
    for (folder, passes) in [("tests", true), ("tests-failing", false)] {
        let files = files(folder);
        assert_eq!(files.len(), 3, "one of each kind: {files:?}");
        for file in files {
            let output = run(&example(), &file);
            assert_eq!(output.status.success(), passes, "{file}: {output:?}");
        }
    }
    assert_eq!(run(&example(), "tests-failing/words.sh").status.code(), Some(42));
}

#[test]
fn python_files_are_found_wherever_they_lie() {
    let top = tempfile::tempdir().expect("a folder");
    let passing =
        "import unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n        self.assertEqual(1, 1)\n";
    for file in [
        "test_a.py",
        "test/test_a.py",
        "tests-x/test_a.py",
        "a.b/test_a.py",
        "t/my-test.py",
        "t/json.py",
        "t/unittest.py",
    ] {
        let path = top.path().join(file);
        fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
        fs::write(&path, passing).expect("written");
        let output = run(top.path(), file);
        assert!(output.status.success(), "{file}: {output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("Ran 1 test"), "{file}: {output:?}");
    }
}

#[test]
fn a_python_file_that_tests_nothing_does_not_pass() {
    let top = tempfile::tempdir().expect("a folder");
    for (text, told) in [
        ("x = 1\n", "no test in f.py"),
        ("raise ValueError('broken')\n", "ValueError: broken"),
        ("import unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n        self.fail('told')\n", "told"),
    ] {
        fs::write(top.path().join("f.py"), text).expect("written");
        let output = run(top.path(), "f.py");
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(told), "{text}: {output:?}");
    }
}
