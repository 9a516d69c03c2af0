use rate_limit_core::limit::Algorithm;
use rate_limit_core::redis::script::{Scripts, Variant};
fn main() {
    let scripts = Scripts::new();
    let dir = std::env::args().nth(1).unwrap();
    for algorithm in Algorithm::ALL {
        for settled in [false, true] {
            let s = scripts.single(Variant::new(algorithm, settled)).unwrap();
            println!("{algorithm:?} {settled} {}", s.source().len());
            std::fs::write(format!("{dir}/{algorithm:?}_{settled}.lua"), s.source()).unwrap();
        }
    }
    println!("several {} {}", scripts.several().source().len(), scripts.several_settled().source().len());
}
