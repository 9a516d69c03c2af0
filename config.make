# Read by NGINX's configure after `config`: the rules for `make`, `make modules` and `make install`. NGINX's own rules
# compile and link C, so the module is not one of DYNAMIC_MODULES.

cat << END                                                    >> $NGX_MAKEFILE

.PHONY:	$ngx_addon_name $ngx_addon_name.install

modules:	$ngx_addon_name

# cargo knows what is up to date, and reads its settings where it runs: the archive of a release names the crates that it
# brings along. The headers are those of this tree.
$ngx_addon_name:
	objs="\$\$(realpath $NGX_OBJS)" && cd $ngx_addon_dir && \\
		NGINX_SOURCE_DIR="\$(CURDIR)" NGINX_BUILD_DIR="\$\$objs" \\
		cargo build --release --locked --target-dir "\$\$objs/rust"
	cp $NGX_OBJS/rust/release/lib$ngx_addon_name.so $NGX_OBJS/$ngx_addon_name.so

install:	$ngx_addon_name.install

$ngx_addon_name.install:	$ngx_addon_name
	mkdir -p '\$(DESTDIR)$NGX_MODULES_PATH'
	install -m 644 $NGX_OBJS/$ngx_addon_name.so '\$(DESTDIR)$NGX_MODULES_PATH/'
END
