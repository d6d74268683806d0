//! The program `culvert-hub`; all of it is in the library.

mod heap;

use std::process::ExitCode;

use tokio::runtime::Builder;

fn main() -> ExitCode {
    heap::give_free_memory_back();
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("the kernel has an epoll to give");
    runtime.block_on(culvert_hub::main())
}
