import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig } from 'vite';

// The built files are committed: their names are stable, and a hash over all of them is part of the address
// (`/ui/a/HASH/`), which `crates/ui/build.rs` fills in.
const files = {
  entryFileNames: 'app.js',
  chunkFileNames: '[name].js',
  assetFileNames: 'app[extname]',
};

export default defineConfig(({ command }) => ({
  base: command === 'build' ? '/ui/a/HASH/' : '/ui/',
  plugins: [svelte()],
  experimental: {
    renderBuiltUrl: (_, { hostType }) => (hostType === 'js' ? { relative: true } : undefined),
  },
  build: {
    outDir: '../crates/ui/dist',
    emptyOutDir: true,
    target: 'es2022',
    cssCodeSplit: false,
    modulePreload: false,
    assetsDir: '',
    assetsInlineLimit: 0,
    reportCompressedSize: false,
    rollupOptions: { output: files },
  },
  worker: { format: 'es', rollupOptions: { output: { ...files, entryFileNames: 'feed.js' } } },
  server: { proxy: { '/api': process.env.DOWNBEAT ?? 'http://127.0.0.1:4680' } },
}));
