//! `refrain completions` and `refrain man`.

use crate::support::{Files, refrain};
use std::path::Path;
use std::process::Command;

#[test]
fn completions_of_every_shell_name_all_commands() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let output = refrain(["completions", shell]);
        assert!(output.ok, "{output:?}");
        for name in ["call", "gateway", "demo", "serve", "bearer-file"] {
            assert!(output.out.contains(name), "{shell}: no {name}");
        }
    }
    let output = refrain(["completions", "ksh"]);
    assert_eq!(output.code, 2, "{output:?}");
}

#[test]
fn bash_completes_a_command() {
    let files = Files::new();
    let script = files.write("refrain.bash", &refrain(["completions", "bash"]).out);
    let complete = "source \"$1\"; COMP_WORDS=(refrain gat); COMP_CWORD=1; _refrain refrain gat refrain; \
                    echo \"${COMPREPLY[@]}\"";
    let output = Command::new("bash")
        .args(["-c", complete, "bash"])
        .arg(script)
        .output();
    let output = output.expect("bash starts");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "gateway\n");
}

#[test]
fn manual_has_a_page_for_every_command() {
    let files = Files::new();
    let folder = files.path("man");
    let output = refrain(["man".as_ref(), folder.as_os_str()]);
    assert!(output.ok, "{output:?}");
    for page in ["refrain", "refrain-call", "refrain-gateway-check"] {
        let text = std::fs::read_to_string(folder.join(format!("{page}.1"))).expect(page);
        assert!(text.contains(".TH "), "{text}");
        assert!(text.contains(".SH SYNOPSIS"), "{text}");
    }
    assert!(!folder.join("refrain-man.1").exists(), "a hidden command");

    let file = files.write("file", "");
    let output = refrain(["man".as_ref(), Path::as_os_str(&file)]);
    assert_eq!(output.code, 1);
    let expected = format!("error: cannot write to {}: ", file.display());
    assert!(output.err.starts_with(&expected), "{output:?}");
}
