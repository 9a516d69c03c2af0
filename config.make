# Read by NGINX's configure after `config`: the rules for `make`, `make modules` and `make install`. NGINX's own rules
# compile and link C, so the module is not one of DYNAMIC_MODULES.

cat << END                                                    >> $NGX_MAKEFILE

.PHONY:	$ngx_addon_name $ngx_addon_name.install

modules:	$ngx_addon_name

# cargo knows what is up to date. The headers are those of this tree.
$ngx_addon_name:
	NGINX_SOURCE_DIR="\$(CURDIR)" NGINX_BUILD_DIR="\$\$(realpath $NGX_OBJS)" \\
		cargo build --release --locked --manifest-path $ngx_addon_dir/Cargo.toml --target-dir $NGX_OBJS/rust
	cp $NGX_OBJS/rust/release/lib$ngx_addon_name.so $NGX_OBJS/$ngx_addon_name.so

install:	$ngx_addon_name.install

$ngx_addon_name.install:	$ngx_addon_name
	mkdir -p '\$(DESTDIR)$NGX_MODULES_PATH'
	install -m 644 $NGX_OBJS/$ngx_addon_name.so '\$(DESTDIR)$NGX_MODULES_PATH/'
END
