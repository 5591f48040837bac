//! `serve` as a process with a real vhost-user driver on the other side.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use common::guest::Guest;
use common::{folder, json, refused, succeeds, Daemon};
use nix::sys::signal::Signal;

const CONTRACTS: [&str; 3] = ["power", "power-window=50ms", "guest-crash"];

/// Bytes that differ from place to place and from seed to seed.
fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i as u64).wrapping_mul(2_654_435_761).wrapping_add(u64::from(seed) * 97) as u8 ^ seed)
        .collect()
}

fn file_bytes(path: &Path, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    std::fs::File::open(path).unwrap().read_exact_at(&mut bytes, offset).unwrap();
    bytes
}

/// What stands in a folder, sockets and all.
fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// In the sandbox, too, and under every contract.
#[test]
fn a_guest_whose_call_blocks_keeps_neither_its_disk_nor_sigterm() {
    for contract in CONTRACTS {
        let dir = folder(&[("a.img", "1M")]);
        let daemon = Daemon::serve(dir.path(), &["--disk", "a.img,socket=s", "--survives", contract]);
        let mut guest = Guest::connect(&dir.path().join("s"));
        guest.write(0, &pattern(1, 4096));
        guest.block_the_call();
        for block in 1..4u64 {
            guest.start_write(4096 * block, &pattern(block as u8, 4096));
            assert_eq!(guest.complete_unnotified(), 0, "{contract}");
        }
        daemon.terminate();
        assert_eq!(file_bytes(&dir.path().join("a.img"), 3 * 4096, 4096), pattern(3, 4096), "{contract}");
    }
}

#[test]
fn under_every_contract_an_orderly_end_leaves_a_plain_raw_file() {
    for contract in CONTRACTS {
        let dir = folder(&[("a.img", "8M")]);
        let image = dir.path().join("a.img");
        let daemon = Daemon::serve(dir.path(), &["--disk", "a.img,serial=s1", "--survives", contract]);
        assert_eq!(daemon.ready["contract"], contract);
        assert!(daemon.ready["promise"].as_str().unwrap().starts_with(contract), "{}", daemon.ready);
        let mut guest = Guest::connect(&dir.path().join("a.img.sock"));
        assert_eq!(guest.sectors(), 16384);
        assert!(!guest.read_only());
        guest.write(4096, &pattern(1, 65536));
        guest.flush();
        guest.write(1 << 20, &pattern(2, 4096));
        guest.write(4096, &pattern(3, 512));
        guest.write(2 << 20, &pattern(4, 65536));
        guest.discard(2 << 20, 65536);
        assert_eq!(guest.read(1 << 20, 4096), pattern(2, 4096), "{contract}");
        assert_eq!(guest.read(2 << 20, 65536), vec![0; 65536], "{contract}");
        daemon.terminate();
        assert_eq!(names(dir.path()), ["a.img"], "{contract}");
        assert_eq!(file_bytes(&image, 4096, 512), pattern(3, 512), "{contract}");
        assert_eq!(file_bytes(&image, 4608, 65024), pattern(1, 65536)[512..], "{contract}");
        assert_eq!(file_bytes(&image, 1 << 20, 4096), pattern(2, 4096), "{contract}");
        assert_eq!(file_bytes(&image, 2 << 20, 65536), vec![0; 65536], "{contract}");
        assert!(
            std::fs::metadata(&image).unwrap().blocks() * 512 < 1 << 20,
            "{contract}: sparse stays sparse"
        );
    }
}

#[test]
fn under_every_contract_a_killed_daemon_loses_nothing_that_was_answered() {
    for contract in CONTRACTS {
        let dir = folder(&[("a.img", "8M"), ("b.img", "8M")]);
        let args = ["--disk", "a.img", "--disk", "b.img", "--survives", contract, "--control", "c"];
        for round in 0..3u8 {
            let daemon = Daemon::serve(dir.path(), &args);
            let mut a = Guest::connect(&dir.path().join("a.img.sock"));
            let mut b = Guest::connect(&dir.path().join("b.img.sock"));
            if round > 0 {
                assert_eq!(a.read(0, 4096), pattern(round, 4096), "{contract}, round {round}");
                assert_eq!(a.read(8192, 4096), pattern(round + 50, 4096), "{contract}, round {round}");
                assert_eq!(b.read(1 << 20, 65536), pattern(round + 100, 65536), "{contract}, round {round}");
            }
            a.write(0, &pattern(round + 1, 4096));
            a.flush();
            b.write(1 << 20, &pattern(round + 101, 65536));
            // Answered and not flushed: the process rule holds for it as well.
            a.write(8192, &pattern(round + 51, 4096));
            daemon.kill();
        }
        // The image is offline now: what the log holds comes home without a daemon, too.
        succeeds(dir.path(), &["recover", "a.img"]);
        assert_eq!(file_bytes(&dir.path().join("a.img"), 0, 4096), pattern(3, 4096), "{contract}");
        assert_eq!(file_bytes(&dir.path().join("b.img"), 1 << 20, 65536), pattern(103, 65536), "{contract}");
    }
}

#[test]
fn a_request_in_flight_when_the_guest_leaves_does_not_stop_an_orderly_end() {
    let dir = folder(&[("a.img", "8M")]);
    let daemon = Daemon::serve(dir.path(), &["--disk", "a.img"]);
    let mut guest = Guest::connect(&dir.path().join("a.img.sock"));
    guest.start_write(0, &pattern(1, 4096));
    drop(guest);
    // A new guest is served; two signals at once are one too many and do no harm.
    let mut guest = Guest::connect(&dir.path().join("a.img.sock"));
    guest.write(4096, &pattern(2, 4096));
    daemon.signal(Signal::SIGINT);
    daemon.signal(Signal::SIGTERM);
    let mut daemon = daemon;
    let (status, errors) = daemon.end();
    assert!(status.success(), "{errors}");
    assert_eq!(file_bytes(&dir.path().join("a.img"), 4096, 4096), pattern(2, 4096));
}

#[test]
fn a_connected_descriptor_is_served_until_the_guest_leaves() {
    use std::os::fd::AsRawFd;
    use std::os::unix::process::CommandExt;
    let dir = folder(&[("a.img", "1M")]);
    let socket = dir.path().join("mine");
    let listener = UnixListener::bind(&socket).unwrap();
    // The driver connects to us and is handed on, as a manager does.
    let guest = std::thread::spawn({
        let socket = socket.clone();
        move || {
            let mut guest = Guest::connect(&socket);
            guest.write(0, &pattern(9, 512));
        }
    });
    let (connected, _) = listener.accept().unwrap();
    let number = connected.as_raw_fd();
    let fd = number.to_string();
    let mut command = common::afterimage(&["serve", "--json", "--blk-file", "a.img", "--fd", &fd]);
    #[allow(unsafe_code)]
    // SAFETY: one async-signal-safe call between fork and exec on a number that is open there.
    unsafe {
        command.pre_exec(move || {
            nix::fcntl::fcntl(
                std::os::fd::BorrowedFd::borrow_raw(number),
                nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty()),
            )?;
            Ok(())
        });
    }
    let mut daemon = Daemon::start(command.current_dir(dir.path()));
    drop(connected);
    guest.join().unwrap();
    let (status, errors) = daemon.end();
    assert!(status.success(), "{errors}");
    assert_eq!(file_bytes(&dir.path().join("a.img"), 0, 512), pattern(9, 512));
}

#[test]
fn a_read_only_disk_refuses_writes_and_serves_reads() {
    let dir = folder(&[("a.img", "1M")]);
    std::fs::write(dir.path().join("a.img"), pattern(5, 1 << 20)).unwrap();
    let before = std::fs::metadata(dir.path().join("a.img")).unwrap().modified().unwrap();
    let daemon = Daemon::serve(dir.path(), &["--blk-file", "a.img", "--socket-path", "s", "--read-only"]);
    let mut guest = Guest::connect(&dir.path().join("s"));
    assert!(guest.read_only());
    assert_eq!(guest.read(512, 4096), pattern(5, 1 << 20)[512..4608]);
    assert_ne!(guest.try_write(0, &[0; 512]), 0);
    daemon.terminate();
    assert_eq!(std::fs::metadata(dir.path().join("a.img")).unwrap().modified().unwrap(), before);
}

#[test]
fn the_control_socket_answers_everything() {
    for contract in CONTRACTS {
        let dir = folder(&[("a.img", "8M")]);
        let args = ["--disk", "a.img,serial=disk-a", "--survives", contract, "--control", "c"];
        let mut daemon = Daemon::serve(dir.path(), &args);
        let mut guest = Guest::connect(&dir.path().join("a.img.sock"));
        guest.write(0, &pattern(1, 4096));
        guest.write(8192, &pattern(2, 4096));
        guest.flush();
        let status = json(dir.path(), &["ctl", "c", "status", "--json"]);
        assert_eq!(status["contract"], contract);
        assert_eq!(status["sequence"]["acknowledged"], 2, "{status}");
        assert_eq!(status["disks"][0]["attached"], true);
        assert_eq!(status["disks"][0]["serial"], "disk-a");
        let count = |kind: &str| {
            let all = status["disks"][0]["requests"].as_array().unwrap();
            all.iter().find(|o| o["kind"] == kind).unwrap()["requests"].as_u64().unwrap()
        };
        assert_eq!((count("write"), count("flush")), (2, 1), "{status}");
        let text = succeeds(dir.path(), &["ctl", "c", "status"]);
        assert!(text.starts_with(contract) && text.contains("guest connected"), "{text}");

        let mut events = common::afterimage(&["ctl", "c", "events", "--json"])
            .current_dir(dir.path())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(events.stdout.take().unwrap()).lines();
        // That one may come late; this one is there before anything happens.
        let mut subscriber = UnixStream::connect(dir.path().join("c")).unwrap();
        writeln!(subscriber, "{{\"command\":\"events\"}}").unwrap();
        let mut told = BufReader::new(subscriber).lines();
        assert_eq!(told.next().unwrap().unwrap(), "{\"ok\":true}");
        guest.write(0, &pattern(3, 4096));
        assert_eq!(succeeds(dir.path(), &["ctl", "c", "flush"]), "3\n", "{contract}");
        assert_eq!(succeeds(dir.path(), &["ctl", "c", "wait", "3", "--timeout", "20s"]), "3 is durable\n");
        refused(dir.path(), &["ctl", "c", "wait", "4"], 1, &["ahead of the newest request"]);
        assert_eq!(
            json(dir.path(), &["ctl", "c", "status", "--json"])["sequence"]["durable"],
            3,
            "{contract}"
        );

        let stop = succeeds(dir.path(), &["ctl", "c", "stop"]);
        assert_eq!(stop, "closed in order\n");
        let (status, errors) = daemon.end();
        assert!(status.success(), "{errors}");
        let mut seen = Vec::new();
        // The stream ends with the daemon; what it said before is complete.
        while let Some(Ok(line)) = told.next() {
            let event: serde_json::Value = serde_json::from_str(&line).unwrap();
            seen.push(event["event"].as_str().expect("an event has a name").to_owned());
        }
        events.wait().unwrap();
        assert!(seen.iter().any(|e| e == "durable"), "{contract}: {seen:?}");
        assert_eq!(seen.last().map(String::as_str), Some("closed"), "{contract}: {seen:?}");
        let last = lines.map_while(Result::ok).last();
        assert!(last.is_some_and(|line| line.contains("closed")), "{contract}");
        assert_eq!(names(dir.path()), ["a.img"], "{contract}");
    }
}

#[test]
fn strangers_on_the_control_socket_do_no_harm() {
    let dir = folder(&[("a.img", "1M")]);
    let daemon = Daemon::serve(dir.path(), &["--disk", "a.img", "--control", "c"]);
    let control = dir.path().join("c");
    assert_eq!(std::fs::metadata(&control).unwrap().mode() & 0o777, 0o600);
    let mut stream = UnixStream::connect(&control).unwrap();
    let mut answers = BufReader::new(stream.try_clone().unwrap()).lines();
    for line in ["{}", "nonsense", "{\"command\":\"status\",\"x\":1}", "\u{0}"] {
        writeln!(stream, "{line}").unwrap();
        let answer = answers.next().unwrap().unwrap();
        assert!(answer.starts_with("{\"ok\":false,\"error\":\"not a request"), "{answer}");
    }
    // A line without an end is cut off, not collected.
    stream.write_all(&[b'x'; 5000]).unwrap();
    assert!(answers.next().unwrap().unwrap().contains("more than 4096 bytes"));
    assert!(answers.next().is_none_or(|end| end.is_err()));
    daemon.terminate();
}

#[test]
fn a_pause_holds_writes_at_a_prefix_and_ends_with_its_client() {
    for contract in CONTRACTS {
        let dir = folder(&[("a.img", "8M"), ("b.img", "8M")]);
        std::fs::create_dir(dir.path().join("copies")).unwrap();
        let args = ["--disk", "a.img", "--disk", "b.img", "--survives", contract, "--control", "c"];
        let daemon = Daemon::serve(dir.path(), &args);
        let mut guest = Guest::connect(&dir.path().join("a.img.sock"));
        guest.write(0, &pattern(1, 4096));
        // A raw connection that pauses and then just disappears.
        let mut holder = UnixStream::connect(dir.path().join("c")).unwrap();
        writeln!(holder, "{{\"command\":\"pause\",\"for_ms\":600000}}").unwrap();
        let mut answer = String::new();
        BufReader::new(holder.try_clone().unwrap()).read_line(&mut answer).unwrap();
        assert_eq!(answer, "{\"ok\":true,\"sequence\":1}\n", "{contract}");
        // While it is in force: the file is what the guest wrote, a write waits, reads go on, nobody else may pause.
        assert_eq!(file_bytes(&dir.path().join("a.img"), 0, 4096), pattern(1, 4096), "{contract}");
        guest.start_write(0, &pattern(2, 4096));
        assert_eq!(guest.complete_within(Duration::from_millis(300)), None, "{contract}");
        assert_eq!(file_bytes(&dir.path().join("a.img"), 0, 4096), pattern(1, 4096), "{contract}");
        refused(dir.path(), &["ctl", "c", "copy", "copies"], 1, &["paused already"]);
        assert_eq!(json(dir.path(), &["ctl", "c", "status", "--json"])["paused"], true);
        drop(holder);
        assert_eq!(guest.complete(), Some(0), "{contract}");

        // With a command: the copy is consistent, and the command's status is handed on.
        // Writes go on a moment before the next pause may begin.
        let copy = ["ctl", "c", "pause", "--", "cp", "--sparse=always", "a.img", "copies/cp.img"];
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            let output = common::run(dir.path(), &copy);
            if output.status.success() {
                break;
            }
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(said.contains("paused already") && Instant::now() < until, "{contract}: {said}");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(file_bytes(&dir.path().join("copies/cp.img"), 0, 4096), pattern(2, 4096), "{contract}");
        let output = common::run(dir.path(), &["ctl", "c", "pause", "--", "sh", "-c", "exit 7"]);
        assert_eq!(output.status.code(), Some(7));
        // A command that takes longer than the pause: its copy is not to be trusted, and that is said.
        refused(
            dir.path(),
            &["ctl", "c", "pause", "--for", "100ms", "--", "sleep", "0.5"],
            1,
            &["not consistent", "longer --for"],
        );
        refused(dir.path(), &["ctl", "c", "resume"], 1, &["not paused"]);

        succeeds(dir.path(), &["ctl", "c", "copy", "copies"]);
        let copy = dir.path().join("copies/a.img");
        assert_eq!(std::fs::read(&copy).unwrap().len(), 8 << 20);
        assert_eq!(file_bytes(&copy, 0, 4096), pattern(2, 4096), "{contract}");
        assert!(std::fs::metadata(&copy).unwrap().blocks() < 100, "{contract}: the copy is sparse");
        assert!(dir.path().join("copies/b.img").exists());
        refused(dir.path(), &["ctl", "c", "copy", "copies"], 1, &["exists already"]);

        // An orderly end does not wait for a pause.
        let mut holder = UnixStream::connect(dir.path().join("c")).unwrap();
        writeln!(holder, "{{\"command\":\"pause\"}}").unwrap();
        holder.read_exact(&mut [0; 10]).unwrap();
        guest.start_write(0, &pattern(3, 4096));
        daemon.terminate();
        // The copy opens by itself.
        Daemon::serve(&dir.path().join("copies"), &["--disk", "a.img"]).terminate();
    }
}

#[test]
fn metrics_are_served_as_prometheus_text() {
    let dir = folder(&[("a.img", "8M")]);
    let args = ["--disk", "a.img", "--metrics", "127.0.0.1:0", "--survives", "power"];
    let daemon = Daemon::serve(dir.path(), &args);
    let address = daemon.ready["metrics"].as_str().unwrap().to_owned();
    let mut guest = Guest::connect(&dir.path().join("a.img.sock"));
    guest.write(0, &pattern(1, 4096));
    guest.flush();
    guest.read(0, 512);
    let get = |request: &str| {
        let mut stream = std::net::TcpStream::connect(&address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let answer = get("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    for line in [
        "# TYPE afterimage_request_duration_seconds histogram",
        "afterimage_request_duration_seconds_count{disk=\"a.img\",operation=\"write\"} 1",
        "afterimage_requests_total{disk=\"a.img\",operation=\"flush\"} 1",
        "afterimage_request_bytes_total{disk=\"a.img\",operation=\"write\"} 4096",
        "afterimage_request_bytes_total{disk=\"a.img\",operation=\"read\"} 512",
        "afterimage_storage_requests_total{disk=\"a.img\",operation=\"sync\"} 1",
        "afterimage_sequence_number{point=\"acknowledged\"} 1.0",
        "afterimage_sequence_number{point=\"durable\"} 1.0",
        "afterimage_oldest_not_durable_age_seconds 0.0",
        "afterimage_failed 0.0",
        "afterimage_disk_attached{disk=\"a.img\"} 1.0",
        "afterimage_contract_info{contract=\"power\",promise=\"power: ",
    ] {
        assert!(answer.contains(line), "{line} is missing in {answer}");
    }
    for (le, count) in [("0.000001", "0"), ("0.00005", ""), ("10.0", "1"), ("+Inf", "1")] {
        let bucket =
            format!("duration_seconds_bucket{{le=\"{le}\",disk=\"a.img\",operation=\"write\"}} {count}");
        assert!(answer.contains(&bucket), "{bucket} is missing in {answer}");
    }
    assert!(answer.ends_with("# EOF\n"));
    // Who asks for Prometheus' own text gets that, with counters under the names of their samples.
    let plain =
        get("GET /metrics HTTP/1.1\r\nHost: x\r\naccept: text/plain;version=0.0.4, */*;q=0.1\r\n\r\n");
    assert!(plain.contains("\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{plain}");
    for line in [
        "# TYPE afterimage_requests_total counter\n",
        "# HELP afterimage_requests_total ",
        "# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total 0.",
        "# TYPE process_resident_memory_bytes gauge\n",
        "# TYPE afterimage_request_duration_seconds histogram\n",
    ] {
        assert!(plain.contains(line), "{line} is missing in {plain}");
    }
    assert!(!plain.contains("# EOF") && !plain.contains("# UNIT"), "{plain}");
    let both = "Accept: application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2";
    assert!(get(&format!("GET / HTTP/1.1\r\n{both}\r\n\r\n")).ends_with("# EOF\n"));
    // What is read of the process is read in the sandbox.
    let value = |name: &str| -> f64 {
        let line = plain
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap_or_else(|| panic!("{name}: {plain}"));
        line.trim().parse().unwrap()
    };
    assert!(value("process_resident_memory_bytes ") > 1e6);
    assert!(value("process_virtual_memory_bytes ") >= value("process_resident_memory_bytes "));
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().count() as f64;
    assert!(
        (value("process_open_fds ") - descriptors).abs() < 8.0 && value("process_max_fds ") > descriptors
    );
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    assert!((now - 600.0..=now).contains(&value("process_start_time_seconds ")));
    assert!(get("GET /else HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
    assert!(get("POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
    assert!(get(&"x".repeat(8192)).starts_with("HTTP/1.1 400 "));
    let taken = format!("--metrics={address}");
    refused(
        dir.path(),
        &["serve", "--disk", "a.img,socket=o", &taken],
        1,
        &[&address, "choose another address"],
    );
    daemon.terminate();
}

#[test]
fn settings_come_from_a_file_and_the_command_line_wins() {
    let dir = folder(&[("a.img", "1M"), ("b.img", "1M")]);
    std::fs::write(
        dir.path().join("c.toml"),
        "survives = \"guest-crash\"\nqueues = 2\ncontrol = \"ctl\"\n[[disk]]\nfile = \"a.img\"\nsocket = \"sa\"\n\
         [[disk]]\nfile = \"b.img\"\nsocket = \"sb\"\nread-only = true\nserial = \"bb\"\n",
    )
    .unwrap();
    let daemon = Daemon::serve(dir.path(), &["--config", "c.toml", "--survives", "power"]);
    assert_eq!(daemon.ready["contract"], "power");
    assert_eq!(daemon.ready["disks"][1]["read_only"], true);
    let status = json(dir.path(), &["ctl", "ctl", "status", "--json"]);
    assert_eq!(status["disks"][1]["serial"], "bb");
    daemon.terminate();
    let daemon = Daemon::serve(dir.path(), &["--config", "c.toml", "--disk", "b.img"]);
    assert_eq!(daemon.ready["contract"], "guest-crash");
    assert_eq!(daemon.ready["disks"].as_array().unwrap().len(), 1);
    daemon.terminate();
}

#[test]
fn qemus_cache_modes_mean_what_they_mean_in_qemu() {
    for (mode, contract, write_cache) in
        [("writeback", "power", true), ("writethrough", "power", false), ("unsafe", "guest-crash", true)]
    {
        let dir = folder(&[("a.img", "1M")]);
        let daemon = Daemon::serve(dir.path(), &["--disk", "a.img", "--cache", mode, "--control", "c"]);
        assert_eq!(daemon.ready["contract"], contract);
        let mut guest = Guest::connect(&dir.path().join("a.img.sock"));
        let syncs = |dir: &Path| {
            json(dir, &["ctl", "c", "status", "--json"])["disks"][0]["storage"]["syncs"].as_u64().unwrap()
        };
        guest.write(0, &pattern(1, 4096));
        let status = json(dir.path(), &["ctl", "c", "status", "--json"]);
        assert_eq!(status["disks"][0]["write_cache"], write_cache, "{mode}");
        assert_eq!(
            syncs(dir.path()) > 0,
            !write_cache,
            "{mode}: only without a write cache is a write a flush"
        );
        guest.flush();
        assert_eq!(syncs(dir.path()) > 0, contract == "power", "{mode}");
        daemon.terminate();
    }
}

#[test]
fn the_sandbox_is_closed_and_everything_works_inside() {
    for contract in CONTRACTS {
        let dir = folder(&[("a.img", "8M")]);
        let args = ["--disk", "a.img", "--survives", contract, "--control", "c", "--queues", "2"];
        let daemon = Daemon::serve(dir.path(), &args);
        let sandbox = &daemon.ready["sandbox"];
        let proc_status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
        let filtered = proc_status.lines().any(|l| l == "Seccomp:\t2");
        assert_eq!(sandbox["seccomp"] == "on", filtered, "{sandbox}");
        // Every thread, also those of a queue that comes later.
        let mut guest = Guest::connect(&dir.path().join("a.img.sock"));
        guest.write(0, &pattern(1, 4096));
        guest.flush();
        guest.discard(0, 4096);
        for thread in std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap() {
            let status = std::fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
            assert_eq!(status.lines().any(|l| l == "Seccomp:\t2"), filtered, "{status}");
        }
        succeeds(dir.path(), &["ctl", "c", "flush"]);
        daemon.terminate();
        assert_eq!(names(dir.path()), ["a.img"], "{contract}");
        let daemon = Daemon::serve(dir.path(), &["--disk", "a.img", "--sandbox", "off"]);
        assert_eq!(daemon.ready["sandbox"]["landlock"], "off");
        daemon.terminate();
    }
}

#[test]
fn readiness_is_told_to_the_service_manager() {
    let dir = folder(&[("a.img", "1M")]);
    let manager = std::os::unix::net::UnixDatagram::bind(dir.path().join("notify")).unwrap();
    manager.set_read_timeout(Some(common::DEADLINE)).unwrap();
    let daemon = Daemon::start(
        common::afterimage(&["serve", "--json", "--disk", "a.img"])
            .current_dir(dir.path())
            .env("NOTIFY_SOCKET", dir.path().join("notify")),
    );
    let told = || {
        let mut told = [0; 256];
        let n = manager.recv(&mut told).unwrap();
        String::from_utf8_lossy(&told[..n]).into_owned()
    };
    // Each part of the start may take its time: a manager that waits a minute and a half waits on.
    for what in ["opening the images", "taking over what an earlier daemon left"] {
        assert_eq!(told(), format!("STATUS={what}\nEXTEND_TIMEOUT_USEC=900000000"));
    }
    assert_eq!(told(), "READY=1\nSTATUS=serving");
    daemon.terminate();
    assert_eq!(told(), "STOPPING=1");
}

/// A lock that outlives its process is waited for; whoever stops the daemon meanwhile does not wait for that.
#[test]
fn a_start_that_takes_long_heeds_a_signal() {
    let dir = folder(&[("a.img", "1M")]);
    let image = std::fs::File::options().read(true).write(true).open(dir.path().join("a.img")).unwrap();
    let taken = std::process::Command::new("flock")
        .args(["-x", "-n", "0"])
        .stdin(image.try_clone().unwrap())
        .status();
    assert!(taken.unwrap().success(), "its process is dead now");
    // On its way through a socket it is nobody's, as what a dead process still has under way.
    let (sender, _receiver) = UnixStream::pair().unwrap();
    let rights = [std::os::fd::AsRawFd::as_raw_fd(&image)];
    let message = [nix::sys::socket::ControlMessage::ScmRights(&rights)];
    let (flags, bytes) = (nix::sys::socket::MsgFlags::empty(), [std::io::IoSlice::new(b"x")]);
    nix::sys::socket::sendmsg::<()>(std::os::fd::AsRawFd::as_raw_fd(&sender), &bytes, &message, flags, None)
        .unwrap();
    drop(image);
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut command = common::afterimage(&["serve", "--disk", "a.img", "-v"]);
        let mut child = command.current_dir(dir.path()).stderr(std::process::Stdio::piped()).spawn().unwrap();
        // It says this when it is able to take signals, and waits then.
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("opening the images") {
            line.clear();
            assert_ne!(said.read_line(&mut line).unwrap(), 0, "it ended by itself");
        }
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id() as i32), signal).unwrap();
        let status = common::finish(child).status;
        let ended = std::os::unix::process::ExitStatusExt::signal(&status);
        assert_eq!(ended, Some(Signal::SIGALRM as i32), "{signal}: {status}");
    }
}

/// What the program writes to a socket that systemd calls its journal, or another one.
fn logged(args: &[&str], is_journal: bool) -> Vec<String> {
    let dir = folder(&[("a.img", "1M")]);
    let (ours, theirs) = UnixStream::pair().unwrap();
    let theirs = std::fs::File::from(std::os::fd::OwnedFd::from(theirs));
    let found = theirs.metadata().unwrap();
    let stream = format!("{}:{}", found.dev(), found.ino() + u64::from(!is_journal));
    let mut command = common::afterimage(args);
    command.env("JOURNAL_STREAM", stream).current_dir(dir.path());
    let mut child = command.stdout(std::process::Stdio::piped()).stderr(theirs).spawn().unwrap();
    drop(command);
    if args[0] == "serve"
        && child.stdout.as_mut().is_some_and(|out| BufReader::new(out).read_line(&mut String::new()).is_ok())
    {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
    }
    common::finish(child);
    BufReader::new(ours).lines().map(Result::unwrap).collect()
}

#[test]
fn the_journal_is_told_priorities_and_no_time() {
    let serve = ["serve", "--disk", "a.img", "--survives", "guest-crash", "-v"];
    let lines = logged(&serve, true);
    let levels = ["<3>", "<4>", "<6>", "<7>"];
    assert!(lines.iter().all(|line| levels.iter().any(|level| line.starts_with(level))), "{lines:#?}");
    assert!(lines.iter().any(|line| line.starts_with("<7>")), "{lines:#?}");
    let year = |line: &String| line.contains("20") && line.contains('T') && line.contains("Z ");
    assert!(!lines.iter().any(year), "{lines:#?}");
    let lines = logged(&serve, false);
    assert!(!lines.is_empty() && lines.iter().all(year), "elsewhere with the time: {lines:#?}");
    // As JSON, and the last word of a program that fails.
    let lines = logged(&["serve", "--disk", "a.img", "-v", "--log-format", "json"], true);
    assert!(
        !lines.is_empty()
            && lines.iter().all(|line| serde_json::from_str::<serde_json::Value>(&line[3..]).is_ok()),
        "{lines:#?}"
    );
    assert!(logged(&["serve", "--disk", "none.img"], true)
        .iter()
        .any(|line| line.starts_with("<3>afterimage: ")));
    assert!(logged(&["serve", "--disk", "none.img"], false)
        .iter()
        .any(|line| line.starts_with("afterimage: ")));
}

/// Guests end before their disks do, and systemd finds little that the unit could do to the rest of the host.
#[test]
fn the_unit_is_sound() {
    let analyze = |args: &[&str]| std::process::Command::new("systemd-analyze").args(args).output();
    if analyze(&["--version"]).is_err() {
        return afterimage_testing::skip("systemd-analyze is not installed");
    }
    let unit =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/systemd/afterimage@.service");
    let text = std::fs::read_to_string(unit).unwrap();
    let dir = tempfile::tempdir().unwrap();
    // The program is where this build has put it, and manual pages are not installed.
    let path = dir.path().join("afterimage@guest.service");
    let here = text.replace("/usr/bin/afterimage", env!("CARGO_BIN_EXE_afterimage"));
    let here: String =
        here.lines().filter(|line| !line.starts_with("Documentation=")).map(|l| format!("{l}\n")).collect();
    std::fs::write(&path, here).unwrap();
    let path = path.to_str().unwrap();
    let verified = analyze(&["verify", path]).unwrap();
    let said = [verified.stdout, verified.stderr].concat();
    assert!(verified.status.success() && said.is_empty(), "{}", String::from_utf8_lossy(&said));
    // Ten times the exposure that is allowed.
    let security = analyze(&["security", "--offline=true", "--threshold=25", path]).unwrap();
    assert!(security.status.success(), "{}", String::from_utf8_lossy(&security.stdout));
    let before = text.lines().find_map(|line| line.strip_prefix("Before=")).unwrap();
    for guests in [
        "machine.slice",
        "virt-guest-shutdown.target",
        "libvirt-guests.service",
        "libvirtd.service",
        "virtqemud.service",
    ] {
        assert!(before.split(' ').any(|unit| unit == guests), "{guests} ends before the disks do: {before}");
    }
}

#[test]
fn people_are_told_the_promise_and_the_places() {
    let dir = folder(&[("a.img", "1M")]);
    let mut child = common::afterimage(&["serve", "--disk", "a.img", "--survives", "power-window=20ms"])
        .current_dir(dir.path())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let promise = lines.next().unwrap();
    assert!(promise.contains("power-window=20ms") && promise.contains("at most the last 20ms"), "{promise}");
    assert_eq!(lines.next().unwrap(), "serving a.img (1 MiB) on a.img.sock");
    assert!(lines.next().unwrap().contains("not ordered against"));
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
    assert!(common::finish(child).status.success());
}

/// Its log lies beside the file, in a folder that nobody has named.
#[test]
fn an_image_behind_a_link_to_another_folder_is_served_in_the_sandbox() {
    let dir = folder(&[("a.img", "1M")]);
    let pool = tempfile::tempdir().unwrap();
    std::fs::rename(dir.path().join("a.img"), pool.path().join("a.img")).unwrap();
    std::os::unix::fs::symlink(pool.path().join("a.img"), dir.path().join("a.img")).unwrap();
    let daemon = Daemon::serve(dir.path(), &["--disk", "a.img", "--survives", "power-window=20ms"]);
    assert!(pool.path().join("a.img.aflog").exists());
    daemon.terminate();
    assert!(!pool.path().join("a.img.aflog").exists());
}
