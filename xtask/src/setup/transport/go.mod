module culvert.example/xtask/transport

go 1.21.0
