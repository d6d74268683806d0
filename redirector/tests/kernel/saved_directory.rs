//! Tests of the saved directory: installed without the proxy, ignored when broken, saved again
//! later.

use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;

use crate::fake_directory::{FakeDirectory, node, usual_nodes};
use crate::proxy::{Proxy, Sockets};
use crate::redirector::{BOTH, EBPF, Redirector, get, run, saved_directory};
use crate::world::{eventually, in_a_world};

#[test]
fn the_saved_directory_is_installed_without_the_proxy() {
    in_a_world(|world| {
        let directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        Redirector::start(world, &BOTH).kill();
        drop(directory);
        // As after a reboot: nothing is installed, and only the file is left.
        let saved = std::fs::read(saved_directory(world)).unwrap();
        run(world, &["uninstall"]);
        std::fs::create_dir_all(world.state_dir()).unwrap();
        std::fs::write(saved_directory(world), saved).unwrap();
        let _redirector = Redirector::start_unready(world, &BOTH);
        let proxy = Proxy::listen();
        let sockets = Sockets::open(world);
        // edge-2 was offline. Now its state is unknown.
        for destination in ["10.0.3.7:9100", "10.0.3.8:9100", "198.18.0.2:80"] {
            let _client = TcpStream::connect(destination).unwrap();
            assert_eq!(
                sockets.original_dst(&proxy.accept()),
                Some(destination.parse().unwrap())
            );
        }
        assert!(
            get("/readyz").unwrap().contains("directory: "),
            "and /readyz says what is missing"
        );
    });
}

#[test]
fn a_broken_saved_directory_is_ignored() {
    in_a_world(|world| {
        let _directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let file = saved_directory(world);
        std::fs::create_dir_all(world.state_dir()).unwrap();
        std::fs::write(&file, "{").unwrap();
        let _redirector = Redirector::start(world, &EBPF);
        eventually("a whole one is saved", || {
            (std::fs::read(&file).unwrap() != b"{").then_some(())
        });
        assert!(run(world, &["explain", "10.0.3.7:9100"]).contains("hooks      steered to "));
    });
}

#[test]
fn a_directory_that_could_not_be_saved_is_saved_later_and_not_for_every_tunnel() {
    in_a_world(|world| {
        let file = saved_directory(world);
        std::fs::create_dir_all(file.join("in the way")).unwrap();
        let directory = FakeDirectory::serve(&world.directory_socket(), usual_nodes());
        let _redirector = Redirector::start(world, &EBPF);
        std::fs::remove_dir_all(&file).unwrap();
        let saved = eventually("the directory is saved", || std::fs::metadata(&file).ok()).ino();
        directory.change(vec![node("edge-2", 2, &["10.0.3.8"], true)], &[]);
        eventually("edge-2 is online", || {
            run(world, &["status"]).contains("offline: 0").then_some(())
        });
        assert_eq!(std::fs::metadata(&file).unwrap().ino(), saved);
        directory.change(vec![node("edge-2", 2, &["10.0.3.9"], true)], &[]);
        eventually("edge-2 is saved", || {
            (std::fs::metadata(&file).unwrap().ino() != saved).then_some(())
        });
    });
}
