import { mount } from 'svelte';
import App from './App.svelte';
import './app.css';
import { start } from './live.svelte';
import { watch } from './place.svelte';

watch();
start();
mount(App, { target: document.getElementById('app')! });
