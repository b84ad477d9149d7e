//! How each test file is run.

use super::walk::Table;
use warmhold_protocol::Rule;

/// Runs a file with Python's unittest, by its path. `python3 -m unittest PATH` turns the path into a module's name
/// instead: a file under `test/` is then looked for in the standard library's package of that name, one in a folder
/// with a dot isn't found, and a file without any test passes.
const UNITTEST: &str = "\
import importlib.util, os, sys, unittest
path = sys.argv[1]
name = os.path.splitext(os.path.basename(path))[0]
name = '_' + name if name in sys.modules else name
spec = importlib.util.spec_from_file_location(name, path)
module = importlib.util.module_from_spec(spec)
sys.modules[name] = module
sys.path.append(os.path.dirname(os.path.abspath(path)))
spec.loader.exec_module(module)
result = unittest.main(module=module, argv=[path], exit=False).result
if result.testsRun == 0 and not result.skipped and result.wasSuccessful():
    sys.exit('no test in ' + path)
sys.exit(not result.wasSuccessful())
";

/// The rules that follow a profile's own.
#[must_use]
pub fn built_in() -> Vec<Rule> {
    let rule = |pattern: &str, run: &[&str]| Rule {
        pattern: pattern.to_owned(),
        run: run.iter().map(|argument| (*argument).to_owned()).collect(),
    };
    vec![
        rule("*.sh", &["sh", "{file}"]),
        rule("*.py", &["python3", "-c", UNITTEST, "{file}"]),
        rule("*.mjs", &["node", "--test", "{file}"]),
        rule("*.js", &["node", "--test", "{file}"]),
    ]
}

/// `[[profile.NAME.test]]`, then the built-in ones: the first that matches wins.
pub(super) fn read(profile: &Table<'_, '_>) -> Vec<Rule> {
    let mut rules = Vec::new();
    for (span, table) in profile.tables("test") {
        let pattern = table.text("match", "a glob on the file's path, such as \"*.sh\"");
        let run = table.texts("run", "an argv that holds {file}, such as [\"sh\", \"{file}\"]");
        for (name, missing) in [("match", pattern.is_none()), ("run", run.is_none())] {
            if missing && !table.has(name) {
                let help = "a rule is a `match` (glob) and a `run` (argv with {file})";
                table.walk.fault(&table.key(name), Some(&span), "is missing", help);
            }
        }
        if let Some(item) = &pattern
            && let Err(error) = globset::Glob::new(&item.value)
        {
            table.walk.fault(
                &item.key,
                Some(&item.span),
                format!("is no glob: {error}"),
                "write one such as \"tests/*.sh\"",
            );
        }
        if let Some(item) = &run {
            let what = match item.value.first() {
                None => Some("is empty"),
                Some(program) if program.trim().is_empty() => Some("has a blank program"),
                Some(_) if !item.value.iter().any(|argument| argument.contains("{file}")) => {
                    Some("nowhere holds {file}, so every file would run the same")
                }
                Some(_) => None,
            };
            if let Some(what) = what {
                table.walk.fault(&item.key, Some(&item.span), what, "write an argv such as [\"sh\", \"{file}\"]");
            }
        }
        table.finish();
        if let (Some(pattern), Some(run)) = (pattern, run) {
            rules.push(Rule { pattern: pattern.value, run: run.value });
        }
    }
    rules.extend(built_in());
    rules
}
