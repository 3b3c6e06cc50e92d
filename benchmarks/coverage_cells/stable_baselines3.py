# %% ppo | https://stable-baselines3.readthedocs.io/en/master/guide/quickstart.html
from stable_baselines3 import PPO

model = PPO("MlpPolicy", "CartPole-v1", device="cuda", n_steps=64, batch_size=32, n_epochs=2)
model.learn(total_timesteps=128)

# %% dqn | https://stable-baselines3.readthedocs.io/en/master/modules/dqn.html
import gymnasium as gym
from stable_baselines3 import DQN

model = DQN("MlpPolicy", gym.make("CartPole-v1"), device="cuda", learning_starts=20)
model.learn(total_timesteps=60)
